-- gate_is_encrypted: whether a codec encrypted the request of the graph that a gate belongs to.
-- in:    $1 gate
-- out:   is_encrypted; one row
-- locks: none
-- index: run_pkey
select exists (
    select
    from runledger.run as gate
    cross join lateral (
        select run.input
        from runledger.run
        where run.run_id = gate.parent_id
        offset 0
    ) as graph
    where gate.run_id = $1 and graph.input ->> '$sealed'::text is not null
) as is_encrypted
