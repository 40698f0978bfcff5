-- last_progress: reads the progress that a body reported last.
-- in:    $1 run, $2 step key (empty for the run itself)
-- out:   value; one row if the body has reported any
-- locks: none
-- index: progress_pkey
select value::text as value
from runledger.progress
where run_id = $1 and step_key = $2
