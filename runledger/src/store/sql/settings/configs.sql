-- configs: lists the configurations that operators stored for jobs.
-- in:    none
-- out:   job, version, config, changed_at
-- locks: none
-- index: config_pkey; a row for each job and version of its configuration format
select job, version, config::text as config, changed_at
from runledger.config
order by job, version
