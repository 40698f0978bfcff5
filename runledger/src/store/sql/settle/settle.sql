-- settle: ends attempts: deletes each lease that still has its token, and moves the run as its
--         verdict says.
-- in:    $1 run ids, $2 tokens, $3 states, $4 outputs, $5 errors, $6 delays in microseconds,
--        $7 instants, $8 causes, $9 attempts, $10 crashes, $11 as in checkpoint.sql
--        a state is `completed`, `failed`, `cancelled`, `queued`, `blocked` or `paused`; the cause
--        `refused` says that the database refused the error that is recorded for this end
-- out:   run_id, token, told (notifications), isolation (of the transaction), restless (as in
--        checkpoint.sql); the items whose fence holds
-- locks: the leases and requests to pause (deleted). Before it, lock_runs.sql locks the parents of
--        these runs, and lock_lease.sql the leases of workflows that fail or are cancelled
-- index: lease_pkey, run_pkey, run_parent, outcome_pkey, completion_watch_pkey, cancel_pkey,
--        pause_pkey, compensation_pkey, step_compensation, step_pkey
--
-- A run that fails or is cancelled goes back to its queue if steps must be compensated. Once none
-- are left, it ends with the first verdict and the attempt of that verdict. The end also stores the
-- request to cancel its live children, so that it survives the death of the worker.
-- A `paused` run is queued if its pause request was withdrawn. The error of a cancelled run
-- includes the reason of the request.
-- With the lock on the lease, this statement sees a step that is being recorded at the same time.
-- The commit of a body's transaction must arrive within 10 s, as in checkpoint.sql.
with item as (
    select *
    from unnest(
        $1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::timestamptz[], $8::text[], $9::integer[], $10::integer[]
    ) as item (run_id, token, state, output, error, delay_us, due_at, cause, attempt, crashes)
),
held as (
    delete from runledger.lease
    using (
        select item.*, spot
        from item
        cross join lateral (select ctid as spot from runledger.lease where run_id = item.run_id and token = item.token offset 0) as found
    ) as item
    where lease.ctid = item.spot and (
        $11::text is null
        or pg_catalog.current_setting('runledger.body', true) = $11 and pg_catalog.pg_client_encoding() = 'UTF8'
    )
    returning
        item.run_id, item.token, item.state, item.output, item.error, item.delay_us, item.due_at, item.cause, item.attempt, item.crashes,
        lease.attempt as tried, lease.claims, lease.worker_id, lease.claimed_at
),
failing as (
    select
        held.run_id, held.attempt, held.crashes, held.claims, held.worker_id, held.claimed_at,
        coalesce(compensation.state, held.state) as state,
        case
            when held.cause = 'refused' then held.error::json
            else coalesce(
                compensation.error,
                (
                    select pg_catalog.jsonb_set(held.error::jsonb, '{message}', pg_catalog.to_jsonb((held.error::json ->> 'message'::text) || ': ' || cancel.reason))::json
                    from runledger.cancel
                    where held.state = 'cancelled' and cancel.run_id = held.run_id and cancel.reason is not null
                ),
                held.error::json
            )
        end as error,
        runledger.needs_compensation(held.run_id) as needs_compensation
    from held
    left join lateral (select state, error from runledger.compensation where compensation.run_id = held.run_id offset 0) as compensation on true
    where held.state in ('failed', 'cancelled')
),
ended as (
    insert into runledger.outcome (run_id, state, output, error, attempt, worker_id, started_at)
    select run_id, state, output::json, null, attempt, worker_id, claimed_at
    from held
    where state = 'completed'
    union all
    select run_id, state, null, error, attempt, worker_id, claimed_at
    from failing
    where not needs_compensation
),
compensating as (
    insert into runledger.compensation (run_id, state, error)
    select run_id, state, error
    from failing
    where needs_compensation
    on conflict (run_id) do nothing
),
uncancelled as (
    delete from runledger.cancel
    where run_id = any (array(select run_id from failing where needs_compensation))
),
left_below as (
    insert into runledger.cancel (run_id, reason)
    select run_id, case state when 'failed' then 'a run above it has failed' end
    from failing
    where not needs_compensation
        and exists (select from runledger.run as child where child.parent_id = failing.run_id offset 0)
    on conflict (run_id) do nothing
),
to_undo as (
    insert into runledger.ready (run_id, resource, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select
        failing.run_id, runledger.resource_of(run.options), run.queue, run.job, run.priority, pg_catalog.statement_timestamp(), 'compensating',
        greatest(failing.attempt - 1, 0), failing.crashes, failing.claims
    from failing
    cross join lateral (select * from runledger.run where run_id = failing.run_id offset 0) as run
    where failing.needs_compensation
),
granted as (
    delete from runledger.pause
    where run_id = any (array(select run_id from held where state = 'paused'))
    returning run_id, reason
),
queued as (
    insert into runledger.ready (run_id, resource, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select
        held.run_id, runledger.resource_of(run.options), run.queue, run.job, run.priority,
        coalesce(held.due_at, pg_catalog.statement_timestamp() + held.delay_us::float8 * interval '1 microsecond'),
        held.cause, held.attempt, held.crashes, held.claims
    from held
    cross join lateral (select * from runledger.run where run_id = held.run_id offset 0) as run
    where held.state = 'queued' or (held.state = 'paused' and held.run_id not in (select run_id from granted))
),
blocked as (
    insert into runledger.waiting (run_id, state, error, attempt, crashes, claims, since)
    select run_id, state, error::json, attempt, crashes, claims, pg_catalog.statement_timestamp()
    from held
    where state = 'blocked'
),
paused as (
    insert into runledger.waiting (run_id, state, ready_at, reason, attempt, crashes, claims, since)
    select run_id, state, pg_catalog.statement_timestamp(), granted.reason, attempt, crashes, claims, pg_catalog.statement_timestamp()
    from held
    join granted using (run_id)
),
tried as (
    insert into runledger.attempt (run_id, claims, attempt, worker_id, started_at, error)
    select run_id, claims, tried, worker_id, claimed_at, error::json
    from held
    where state in ('queued', 'blocked') and error is not null
    on conflict do nothing
),
unwatched as (
    delete from runledger.completion_watch
    where run_id = any (
        array(
            select run_id from held where state in ('completed', 'blocked')
            union all
            select run_id from failing where not needs_compensation
        )
    )
    returning run_id
),
told as (
    select runledger.notify('runledger_ended', run_id::text)
    from unwatched
)
select
    run_id, token, (select pg_catalog.count(*) from told) as told, pg_catalog.current_setting('transaction_isolation') as isolation,
    case when $11::text is not null then pg_catalog.set_config('idle_in_transaction_session_timeout', '10s', true) end as restless
from held
