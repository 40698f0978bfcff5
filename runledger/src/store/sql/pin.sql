-- pin: moves a run that no worker holds to another version of its code, and notes that. What is queued and due is due anew, so that no claim has passed it.
-- in:    $1 run, $2 the name of its job with the other version, as it is stored
-- out:   run_id, told; one row where the run was moved
-- locks: its row of `ready` (deleted) or `waiting` (written anew, so that what wakes it reads the version of then), and the run, which is locked before, by
--        lock_runs.sql
-- index: ready_pkey, waiting_pkey, run_pkey, pin_pkey
with before as (
    select run_id, job from runledger.run where run_id = $1
),
unqueued as (
    delete from runledger.ready
    where run_id = $1
    returning run_id, resource, queue, priority, ready_at, cause, attempt, crashes, claims
),
parked as (
    update runledger.waiting set since = since
    where run_id = $1
    returning run_id
),
moved as (
    update runledger.run set job = $2
    where run_id = (select run_id from unqueued union all select run_id from parked)
    returning run_id
),
noted as (
    insert into runledger.pin (run_id, number, from_job, to_job)
    select moved.run_id, (select pg_catalog.count(*) from runledger.pin where pin.run_id = $1) + 1, before.job, $2
    from moved, before
),
queued as (
    insert into runledger.ready (run_id, resource, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select run_id, resource, queue, $2, priority, greatest(ready_at, pg_catalog.statement_timestamp()), cause, attempt, crashes, claims
    from unqueued
),
told as (
    select runledger.notify('runledger_ready', '')
    where exists (select from unqueued)
        and exists (select from runledger.worker where state = 'active' and sleeping)
)
select run_id, (select pg_catalog.count(*) from told) as told
from moved
