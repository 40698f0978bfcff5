-- resume: resumes a blocked or paused run, and drops a pending pause request.
-- in:    $1 run
-- out:   run_id, told (notifications); one row if the run was blocked or paused, or had a pause
--        request
-- locks: its rows of `waiting` and `pause` (deleted); lock_runs.sql has locked the run
-- index: waiting_pkey, pause_pkey, run_pkey
--
-- The run keeps its attempts. A blocked run loses its crash count. A concurrent settlement that
-- would pause the run either commits before this statement, or waits and finds no request.
with unblocked as (
    delete from runledger.waiting
    where run_id = $1 and state in ('blocked', 'paused')
    returning run_id, attempt, case when state = 'paused' then crashes else 0 end as crashes, claims, ready_at
),
unasked as (
    delete from runledger.pause
    where run_id = $1
    returning run_id
),
queued as (
    insert into runledger.ready (run_id, resource, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select
        unblocked.run_id, runledger.resource_of(run.options), run.queue, run.job, run.priority, greatest(unblocked.ready_at, pg_catalog.statement_timestamp()), 'resumed',
        unblocked.attempt, unblocked.crashes, unblocked.claims
    from unblocked
    cross join lateral (select queue, job, priority, options from runledger.run where run_id = unblocked.run_id offset 0) as run
),
told as (
    select runledger.notify('runledger_ready', '')
    where exists (select from unblocked)
        and exists (select from runledger.worker where state = 'active' and sleeping)
)
select run_id, (select pg_catalog.count(*) from told) as told
from (
    select run_id from unblocked
    union
    select run_id from unasked
) as resumed
