-- active_holder: returns the run that holds an active key which another run was refused.
-- in:    $1 the refused run, in the transaction that wrote it
-- out:   job, key, run_id; one row
-- locks: none
-- index: run_pkey, active_pkey
--
-- `job` is the oldest name of the job. For a graph it is `runledger.graph:` and the name of the
-- graph.
select active.job, active.key, active.run_id
from runledger.run
cross join lateral (
    select job, key, run_id
    from runledger.active
    where active.tenant = run.tenant
        and active.job = run.options #>> '{active_key,job}'::text[]
        and active.key = run.options #>> '{active_key,key}'::text[]
    offset 0
) as active
where run.run_id = $1
