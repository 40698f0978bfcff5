-- pins: how a run was moved between versions of its code, the first time first.
-- in:    $1 run
-- out:   from_job, to_job (the names of the job with the version, as they are stored), pinned_at
-- locks: none
-- index: pin_pkey
select from_job, to_job, pinned_at
from runledger.pin
where run_id = $1
order by number
