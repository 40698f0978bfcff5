-- last_progress: what a body said last of how far it is.
-- in:    $1 run, $2 step key (empty for the run itself)
-- out:   value; one row where it has said something
-- locks: none
-- index: progress_pkey
select value::text as value
from runledger.progress
where run_id = $1 and step_key = $2
