-- jobs_known: lists every job that a living worker serves, to suggest a name.
-- in:    none
-- out:   job
-- locks: none
-- index: worker_living
select distinct pg_catalog.unnest(pg_catalog.array_remove(jobs, null)) as job
from runledger.worker
where state <> 'dead' and runledger.is_living(worker)
order by job
