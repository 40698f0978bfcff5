-- steps: lists the recorded steps of a run, in the order in which its code claimed them.
-- in:    $1 run
-- out:   key, ordinal, output, error, claims, recorded_at
-- locks: none
-- index: step_pkey
select key, ordinal, output::text as output, error::text as error, claims, recorded_at
from runledger.step
where run_id = $1
order by seen_len, ordinal
