-- cancel_take: cancels a run that no worker holds, or queues it for its compensation if steps must
--              be compensated first. Runs after cancel_ask.sql, in the same transaction.
-- in:    $1 run, $2 error, $3 whether to end a run that is blocked because a compensation failed,
--        $4 the operator's reason
-- out:   run_id, ended, told (notifications); one row if the run was taken
-- locks: its row of `ready` or `waiting` (deleted)
-- index: ready_pkey, waiting_pkey, graph_counter_pkey, completion_watch_pkey, run_parent,
--        compensation_pkey, step_compensation, outcome_pkey, cancel_pkey
--
-- The cancel request of a run that ends stays until it has no live descendant. The request of a run
-- that starts to compensate is dropped; the end of the compensation creates a new one.
-- An operator decides to set $3. The run then ends with its remaining steps uncompensated.
with compensation as (
    select state, error
    from runledger.compensation
    where run_id = $1
),
unqueued as (
    delete from runledger.ready
    where run_id = $1 and not exists (select from compensation)
    returning run_id, attempt, crashes, claims
),
unparked as (
    delete from runledger.waiting
    where run_id = $1 and (($3 and state = 'blocked') or not exists (select from compensation))
    returning run_id, attempt, crashes, claims
),
taken as (
    select taken.*, not exists (select from compensation) and runledger.needs_compensation(run_id) as needs_compensation
    from (
        select run_id, attempt, crashes, claims from unqueued
        union all
        select run_id, attempt, crashes, claims from unparked
    ) as taken
),
ended as (
    insert into runledger.outcome (run_id, state, error, attempt)
    select run_id, coalesce((select state from compensation), 'cancelled'), coalesce((select error from compensation), $2::text::json), attempt
    from taken
    where not needs_compensation
),
compensating as (
    insert into runledger.compensation (run_id, state, error)
    select run_id, 'cancelled', $2::text::json
    from taken
    where needs_compensation
),
to_undo as (
    insert into runledger.ready (run_id, resource, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select taken.run_id, runledger.resource_of(run.options), run.queue, run.job, run.priority, pg_catalog.statement_timestamp(), 'compensating', taken.attempt, taken.crashes, taken.claims
    from taken
    cross join lateral (select queue, job, priority, options from runledger.run where run_id = taken.run_id offset 0) as run
    where taken.needs_compensation
),
uncounted as (
    delete from runledger.graph_counter
    where run_id = any (array(
        select run_id from taken
        where exists (select from runledger.run where run.run_id = taken.run_id and run.graph is not null offset 0)
    ))
),
uncancelled as (
    delete from runledger.cancel
    where run_id = any (array(
        select run_id from taken
        where needs_compensation or not exists (select from runledger.run where parent_id = taken.run_id offset 0)
    ))
),
left_below as (
    insert into runledger.cancel (run_id, reason)
    select run_id, $4::text
    from taken
    where exists (select from compensation)
        and exists (select from runledger.run as child where child.parent_id = taken.run_id offset 0)
    on conflict (run_id) do nothing
),
unwatched as (
    delete from runledger.completion_watch
    where run_id = any (array(select run_id from taken where not needs_compensation))
    returning run_id
),
told as (
    select runledger.notify('runledger_ended', run_id::text)
    from unwatched
),
woken as (
    select runledger.notify('runledger_ready', '')
    where exists (select from taken where needs_compensation)
        and exists (select from runledger.worker where state = 'active' and sleeping)
)
select run_id, not needs_compensation as ended, (select pg_catalog.count(*) from told) + (select pg_catalog.count(*) from woken) as told
from taken
