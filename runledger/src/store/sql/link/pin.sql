-- pin: moves a run that no worker holds to another version of its code, and records the move.
-- in:    $1 run, $2 the stored name of its job with the other version
-- out:   run_id, told (notifications); one row if the run was moved
-- locks: its row of `ready` (deleted) or `waiting` (updated); lock_runs.sql has locked the run
-- index: ready_pkey, waiting_pkey, run_pkey, pin_pkey
--
-- The update of `waiting` makes a concurrent wake-up read the new version. A queued run that is due
-- becomes due now, so that no claim cursor has already passed it.
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
