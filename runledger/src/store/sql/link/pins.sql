-- pins: lists the moves of a run between versions of its code, oldest first.
-- in:    $1 run
-- out:   from_job, to_job, pinned_at; the job names are the stored ones, with the version
-- locks: none
-- index: pin_pkey
select from_job, to_job, pinned_at
from runledger.pin
where run_id = $1
order by number
