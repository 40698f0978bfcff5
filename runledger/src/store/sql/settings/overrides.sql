-- overrides: lists the overrides that operators set for jobs.
-- in:    none
-- out:   job, disabled, max_attempts, timeout_ms, backoff_first_ms, backoff_cap_ms, changed_at
-- locks: none
-- index: job_override_pkey; a row for each job with an override
select job, disabled, max_attempts, timeout_ms, backoff_first_ms, backoff_cap_ms, changed_at
from runledger.job_override
order by job
