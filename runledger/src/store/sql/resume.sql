-- resume: lets a blocked or paused run go on, with its attempts as they were and, of a blocked one, its crashes forgotten. A pause that is asked for and
--         has not taken place does not.
-- in:    $1 run
-- out:   run_id, told; one row where the run was blocked or paused, or to be paused
-- locks: its rows of `waiting` and `pause` (deleted): a settlement that would pause it now waits, and finds no request, or comes before this; the run
--        is locked before, by lock_runs.sql
-- index: waiting_pkey, pause_pkey, run_pkey
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
