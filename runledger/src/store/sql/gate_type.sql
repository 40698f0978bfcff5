-- gate_type: the values that a gate accepts.
-- in:    $1 gate
-- out:   accepts; no row where nothing is known of it
-- locks: none
-- index: gate_pkey
select accepts::text as accepts
from runledger.gate
where run_id = $1
