-- gate_type: reads the values that a gate accepts, and whether a codec encrypted the request of its
--            graph.
-- in:    $1 gate
-- out:   accepts (null: unknown), is_encrypted; one row if the gate exists
-- locks: none
-- index: gate_pkey, run_pkey
select
    (select accepts::text from runledger.gate where gate.run_id = $1) as accepts,
    graph.input ->> '$sealed'::text is not null as is_encrypted
from runledger.run as gate
cross join lateral (
    select run.input
    from runledger.run
    where run.run_id = gate.parent_id
    offset 0
) as graph
where gate.run_id = $1
