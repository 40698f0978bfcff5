-- clear_overrides: clears the override of a job, so that the job's own definition applies again.
-- in:    $1 job
-- out:   job; one row if there was an override
-- locks: its row of `job_override` (deleted)
-- index: job_override_pkey
delete from runledger.job_override
where job = $1
returning job
