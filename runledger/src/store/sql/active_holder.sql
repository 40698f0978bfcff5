-- active_holder: the run that has the active key which another one was refused.
-- in:    $1 the run that was refused, in the transaction that has written it
-- out:   job (its oldest name; of a graph `runledger.graph:` and its name), key, run_id; one row
-- locks: none
-- index: run_pkey, active_pkey
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
