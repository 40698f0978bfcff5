-- overrides: lists the overrides that operators set for jobs.
-- in:    none
-- out:   job, disabled, max_attempts, timeout_ms, backoff_first_ms, backoff_cap_ms, changed_at
-- locks: none
-- index: tuning_pkey; a row for each job with an override
select job, disabled, max_attempts, timeout_ms, backoff_first_ms, backoff_cap_ms, changed_at
from runledger.tuning
order by job
