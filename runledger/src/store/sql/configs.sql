-- configs: what operators have configured of jobs.
-- in:    none
-- out:   job, version, config, changed_at; a row for each
-- locks: none
-- index: config_pkey; a row for each job and version of its form
select job, version, config::text as config, changed_at
from runledger.config
order by job, version
