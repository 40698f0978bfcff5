-- cancel_ask: notes that a run is to be cancelled, unless it has ended or its end waits for its compensation. Whoever claims or holds the run sees it.
-- in:    $1 run, $2 reason
-- out:   state (null while it goes on), reason (the first that was given), in_graph (whether it is a graph or a node of one), told; one row where the run exists
-- locks: none; the run is locked before, by lock_runs.sql
-- index: run_pkey, outcome_pkey, cancel_pkey, compensation_pkey
with asked as (
    insert into runledger.cancel (run_id, reason)
    select run.run_id, $2
    from runledger.run
    where run.run_id = $1
        and not exists (select from runledger.outcome where outcome.run_id = run.run_id)
        and not exists (select from runledger.compensation where compensation.run_id = run.run_id)
    on conflict (run_id) do nothing
),
told as (
    select runledger.notify('runledger_cancel', $1::text)
    where exists (select from runledger.lease where run_id = $1)
        and not exists (select from runledger.compensation where run_id = $1)
)
select
    outcome.state,
    coalesce((select cancel.reason from runledger.cancel where cancel.run_id = $1), $2) as reason,
    run.graph is not null or run.node is not null as in_graph,
    (select count(*) from told) as told
from runledger.run
left join runledger.outcome using (run_id)
where run.run_id = $1

-- cancel_take: ends a run that no worker holds as cancelled, or sends it back to its queue where steps are left to be compensated first. The statement after
--        cancel_ask.sql, in the same transaction.
-- in:    $1 run, $2 error, $3 whether a run that is parked because a compensation failed is to end with that left undone: somebody has decided it; $4 the reason that
--        they gave
-- out:   run_id, ended, told; one row where the run was taken
-- locks: its row of `ready` or `waiting` (deleted)
-- index: ready_pkey, waiting_pkey, graph_counter_pkey, completion_watch_pkey, run_parent, compensation_pkey, step_compensation, outcome_pkey, cancel_pkey. The request of a run that has started
--        others stays until nothing goes on below it, unless it is to be compensated: what is below it is cancelled at the end of that, which leaves the request.
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
    select taken.run_id, runledger.resource_of(run.options), run.queue, run.job, run.priority, statement_timestamp(), 'compensating', taken.attempt, taken.crashes, taken.claims
    from taken
    cross join lateral (select queue, job, priority, options from runledger.run where run_id = taken.run_id offset 0) as run
    where taken.needs_compensation
),
uncounted as (
    delete from runledger.graph_counter
    using taken
    where graph_counter.run_id = taken.run_id
        and exists (select from runledger.run where run.run_id = taken.run_id and run.graph is not null offset 0)
),
uncancelled as (
    delete from runledger.cancel
    using taken
    where cancel.run_id = taken.run_id
        and (taken.needs_compensation or not exists (select from runledger.run where parent_id = taken.run_id offset 0))
),
left_below as (
    insert into runledger.cancel (run_id, reason)
    select run_id, $4::text
    from taken
    where exists (select from compensation)
        and exists (
            select
            from runledger.run as child
            where child.parent_id = taken.run_id
                and (
                    not exists (select from runledger.outcome where outcome.run_id = child.run_id offset 0)
                    or exists (select from runledger.run as grandchild where grandchild.parent_id = child.run_id offset 0)
                )
            offset 0
        )
    on conflict (run_id) do nothing
),
unwatched as (
    delete from runledger.completion_watch
    using taken
    where completion_watch.run_id = taken.run_id and not taken.needs_compensation
    returning completion_watch.run_id
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
select run_id, not needs_compensation as ended, (select count(*) from told) + (select count(*) from woken) as told
from taken

-- checkpoint_fresh: records steps of runs that this worker holds, for the first time; a fifth cheaper than checkpoint. The group commit of the journal.
-- in:    $1 run ids, $2 tokens, $3 keys, $4 ordinals, $5 fingerprints, $6 outputs, $7 errors, $8 seen_len, $9 seen (as JSON arrays);
--        errors, seen and undos may be empty where all are null; $10 undos
-- out:   held; one row: the positions from 1 of the items whose fence holds. It fails where one is recorded already: then checkpoint tells
-- locks: `for key share` on the leases: a reclaim that deletes one waits, and one that has deleted it is seen
-- index: lease_pkey, step_pkey
with held as (
    select item.*, lease.claims
    from unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::text[], $8::integer[], $9::text[], $10::text[])
        with ordinality as item (run_id, token, key, ordinal, fingerprint, output, error, seen_len, seen, compensation, position)
    cross join lateral (
        select claims
        from runledger.lease
        where run_id = item.run_id and token = item.token
        offset 0
        for key share
    ) as lease
),
recorded as (
    insert into runledger.step (run_id, key, ordinal, fingerprint, output, error, seen_len, seen, compensation, claims)
    select
        run_id, key, ordinal, fingerprint, output::json, error::json, seen_len,
        translate(seen, '[]', '{}')::bigint[], compensation::json, claims
    from held
)
select array_agg(position) as held
from held

-- claim: moves due runs that need no permit from `ready` to `lease`, highest priority first, then earliest due, then oldest.
--        Its end is parts/claimed.sql.
-- in:    $1 worker, $2 token, $3 how many, $4 queues, $5 jobs, $6 priorities, $7 after instants, $8 after ids: a lane and its position each, the
--        lane of the highest priority first
-- out:   run_id, job, tenant, queue, parent_id, is_node, is_linked (whether it was made of another), input, given (what a node is given by those that it needs),
--        slice (how often it has begun anew), options, priority, ready_at, attempt, crashes, claims,
--        claimed_at, cancel_requested, steps, compensating (the state in which it ends once what its steps did is taken back), step_failures
-- locks: the claimed rows of `ready` and no others, skipping those that others hold: the lock stands inside the lane's scan, which is lazy
-- index: ready_lane from the position of each lane: entries before it, living or dead, are never met
with lane as (
    select *
    from unnest($4::text[], $5::text[], $6::smallint[], $7::timestamptz[], $8::uuid[]) as lane (queue, job, priority, after_at, after_id)
    where exists (select from runledger.worker where worker_id = $1 and state = 'active')
),
candidate as (
    select due.spot
    from lane
    cross join lateral (
        select ready.ctid as spot
        from runledger.ready
        where ready.resource = ''
            and ready.queue = lane.queue
            and ready.job = lane.job
            and ready.priority = lane.priority
            and (ready.ready_at, ready.run_id) > (lane.after_at, lane.after_id)
            and ready.ready_at <= now()
        order by ready.ready_at, ready.run_id
        limit $3
        for update skip locked
    ) as due
    limit $3
),
taken as (
    delete from runledger.ready
    where ctid = any (array(select spot from candidate))
    returning run_id, priority, ready_at, attempt, crashes, claims
),
leased as (
    insert into runledger.lease (run_id, token, worker_id, attempt, crashes, claims, claimed_at)
    select run_id, $2::uuid, $1, attempt + 1, crashes, claims + 1, now()
    from taken
)
select
    run.run_id,
    run.job,
    run.tenant,
    run.queue,
    run.parent_id,
    run.node is not null as is_node,
    run.origin_id is not null as is_linked,
    coalesce(continuation.input, run.input)::text as input,
    case when run.node is not null then runledger.dependency_outcomes(run.run_id) end::text as given,
    coalesce(continuation.slice, 0) as slice,
    run.options::text as options,
    taken.priority,
    taken.ready_at,
    taken.attempt + 1 as attempt,
    taken.crashes,
    taken.claims + 1 as claims,
    now() as claimed_at,
    exists (select from runledger.cancel where cancel.run_id = run.run_id) as cancel_requested,
    case when taken.claims > 0 then (
        select json_agg(
            json_build_array(
                step.key, step.ordinal, step.fingerprint, step.output, step.error, step.seen_len, step.seen,
                -- What a step did that the run was given it did not do: where it is compensated without its code, that is not taken back.
                case when step.claims > 0 or not exists (select from runledger.compensation where compensation.run_id = taken.run_id) then step.compensation end
            )
        )::text
        from runledger.step
        where step.run_id = run.run_id
    ) end as steps,
    case when taken.claims > 0 then (select state from runledger.compensation where compensation.run_id = taken.run_id) end as compensating,
    case when taken.claims > 0 then (
        select json_object_agg(failed.step_key, json_build_array(failed.attempts, (extract(epoch from failed.began_at) * 1000000)::bigint))::text
        from (
            select attempt.step_key, count(*) as attempts, min(attempt.started_at) as began_at
            from runledger.attempt
            where attempt.run_id = run.run_id and attempt.step_key <> '' and attempt.claims > coalesce(continuation.claims, 0)
            group by attempt.step_key
        ) as failed
    ) end as step_failures
from taken
-- `offset 0` keeps the planner from turning the join round: it must be one probe a run, never a scan.
cross join lateral (select * from runledger.run where run_id = taken.run_id offset 0) as run
left join lateral (
    select input, slice, claims from runledger.continuation where taken.claims > 0 and continuation.run_id = taken.run_id offset 0
) as continuation on true
order by taken.priority desc, taken.ready_at, taken.run_id

-- enqueue: writes runs, some of which may be there already, and the places of the new ones in the queue, in the caller's transaction or its own.
-- in:    $1 run ids, $2 jobs, $3 tenants, $4 queues, $5 priorities, $6 inputs, $7 options, $8 idempotency keys, $9 delays in microseconds,
--        $10 instants; arrays of one length, or empty where all are null: no tenant, no delay
-- out:   created, isolation, told; one row: the ids of the runs that are new, the level of the transaction, how many workers are woken
-- locks: none; a concurrent equal key waits for the other transaction
-- index: run_pkey. A batch with a keyed run is written only under read committed: above it the answer could be wrong. Of the sleeping
--        workers that serve these jobs one more than there are runs is woken, since one of them may be dead.
with created as (
    insert into runledger.run (run_id, job, tenant, queue, priority, input, options, idempotency_key, start_at)
    select
        run_id, job, coalesce(tenant, ''), queue, priority, input::json, options::json, idempotency_key,
        coalesce(start_at, statement_timestamp() + coalesce(delay_us, 0) * interval '1 microsecond')
    from unnest(
        $1::uuid[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::text[], $7::text[], $8::text[], $9::bigint[], $10::timestamptz[]
    ) as item (run_id, job, tenant, queue, priority, input, options, idempotency_key, delay_us, start_at)
    where cardinality($8::text[]) = 0 or current_setting('transaction_isolation') in ('read committed', 'read uncommitted')
    on conflict (run_id) do nothing
    returning run_id, queue, job, priority, options, start_at
),
queued as (
    insert into runledger.ready (run_id, resource, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select run_id, runledger.resource_of(options), queue, job, priority, start_at, 'enqueued', 0, 0, 0
    from created
),
told as (
    select runledger.notify('runledger_ready', worker_id::text)
    from runledger.worker
    where state = 'active' and sleeping
        and exists (select from created where created.queue = any (worker.queues) and created.job = any (worker.jobs))
    order by random()
    limit (select count(*) + 1 from created)
)
select
    array(select run_id from created) as created,
    current_setting('transaction_isolation') as isolation,
    (select count(*) from told) as told

-- enqueue_fresh: writes runs without idempotency keys whose ids were made for this statement, so that none can be there; a fifth cheaper than enqueue.
-- in:    $1 run ids, $2 jobs, $3 tenants, $4 queues, $5 priorities, $6 inputs, $7 options, $8 delays in microseconds, $9 instants; arrays of one
--        length, or empty where all are null: no tenant, no delay
-- out:   told; one row: how many workers are woken
-- locks: none
-- index: none. Of the sleeping workers that serve these jobs one more than there are runs is woken, since one of them may be dead
with created as (
    insert into runledger.run (run_id, job, tenant, queue, priority, input, options, start_at)
    select
        run_id, job, coalesce(tenant, ''), queue, priority, input::json, options::json,
        coalesce(start_at, statement_timestamp() + coalesce(delay_us, 0) * interval '1 microsecond')
    from unnest(
        $1::uuid[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::text[], $7::text[], $8::bigint[], $9::timestamptz[]
    ) as item (run_id, job, tenant, queue, priority, input, options, delay_us, start_at)
    returning run_id, queue, job, priority, options, start_at
),
queued as (
    insert into runledger.ready (run_id, resource, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select run_id, runledger.resource_of(options), queue, job, priority, start_at, 'enqueued', 0, 0, 0
    from created
),
told as (
    select runledger.notify('runledger_ready', worker_id::text)
    from runledger.worker
    where state = 'active' and sleeping
        and exists (select from created where created.queue = any (worker.queues) and created.job = any (worker.jobs))
    order by random()
    limit (select count(*) + 1 from created)
)
select count(*) as told
from told

-- heartbeat: says that this worker lives, and asks what concerns it.
-- in:    $1 worker, $2 seconds of silence after which a heartbeat of another worker is missing
-- out:   alive (false: declared dead, or lost in a failover; stop everything and register anew), draining, cancels (the ids of held runs to cancel),
--        unheld (the ids of runs to cancel that no worker holds), pauses (the ids of held runs to pause), pauses_left (whether there are requests for
--        runs that no worker holds), silent (the workers that miss a heartbeat), incarnation (of the server),
--        timers_due (whether a wait has come to its limit), deadlines_due (whether the deadline of a run is over), overrides (changes when what operators say
--        of jobs does), configs (changes when what they configure does), last (this worker's heartbeat before), now; one row
-- locks: the worker's row
-- index: worker_pkey, worker_living, lease_pkey, ready_pkey, waiting_pkey, waiting_wake, deadline_due, job_override_pkey, config_pkey
with me as (
    update runledger.worker
    set heartbeat_at = clock_timestamp()
    where worker_id = $1 and state <> 'dead'
    returning drain_requested
)
select
    exists (select from me) as alive,
    coalesce((select drain_requested from me), false) as draining,
    array(
        select cancel.run_id
        from runledger.cancel
        cross join lateral (select worker_id from runledger.lease where run_id = cancel.run_id offset 0) as lease
        where lease.worker_id = $1
    ) as cancels,
    array(
        select cancel.run_id
        from runledger.cancel
        where exists (select from runledger.ready where ready.run_id = cancel.run_id offset 0)
            or exists (select from runledger.waiting where waiting.run_id = cancel.run_id offset 0)
    ) as unheld,
    array(
        select pause.run_id
        from runledger.pause
        cross join lateral (select worker_id from runledger.lease where run_id = pause.run_id offset 0) as lease
        where lease.worker_id = $1
    ) as pauses,
    exists (
        select from runledger.pause
        where not exists (select from runledger.lease where lease.run_id = pause.run_id offset 0)
    ) as pauses_left,
    array(
        select worker_id
        from runledger.worker
        where state <> 'dead' and worker_id <> $1 and heartbeat_at < clock_timestamp() - make_interval(secs => $2)
    ) as silent,
    runledger.server_incarnation() as incarnation,
    exists (select from runledger.waiting where wake_at <= now()) as timers_due,
    exists (select from runledger.deadline where deadline_at <= now()) as deadlines_due,
    coalesce((select md5(string_agg(job_override::text, ' ' order by job)) from runledger.job_override), '') as overrides,
    -- Whoever changes a row gives it another xmin, and nothing has to read what may be large.
    coalesce((select md5(string_agg(concat_ws(' ', job, version, xmin), ' ' order by job, version)) from runledger.config), '') as configs,
    -- As the statement found it.
    (select heartbeat_at from runledger.worker where worker_id = $1) as last,
    clock_timestamp() as now

-- lock_runs: makes everything that must be serial for one run serial. Always the first statement of its transaction.
-- in:    $1 run ids
-- out:   run_id; the ids that exist
-- locks: `for no key update` on the runs, in the order of their ids: the one lock order
-- index: run_pkey
select run_id
from runledger.run
where run_id = any($1::uuid[])
order by run_id
for no key update

-- orphans: leases whose worker is dead or unknown, with what their settlement needs.
-- in:    $1 how many
-- out:   run_id, token, attempt, crashes, parent_id, is_node, cancel_requested
-- locks: the leases, skipping those that others hold: a step that is recorded now comes before this, or finds no lease any more
-- index: worker_pkey
select
    lease.run_id, lease.token, lease.attempt, lease.crashes, run.parent_id, run.is_node,
    exists (select from runledger.cancel where cancel.run_id = lease.run_id) as cancel_requested
from runledger.lease
cross join lateral (select parent_id, node is not null as is_node from runledger.run where run_id = lease.run_id offset 0) as run
where not exists (
    select from runledger.worker
    where worker.worker_id = lease.worker_id and worker.state <> 'dead'
)
limit $1
for update of lease skip locked

-- progressed: which runs have recorded a step under their present claim. A statement of its own after orphans.sql: its snapshot sees what was recorded
--             before the leases were locked.
-- in:    $1 run ids
-- out:   run_id
-- locks: none; the leases are locked before
-- index: lease_pkey, step_pkey
select held.run_id
from unnest($1::uuid[]) as orphan (run_id)
cross join lateral (select run_id, claims from runledger.lease where lease.run_id = orphan.run_id offset 0) as held
where exists (select from runledger.step where step.run_id = held.run_id and step.claims = held.claims offset 0)

-- send_signal: keeps a signal for a run that goes on, and wakes the run where it waits for one of this name. A graph, a gate and a map node have no code that
--              could take one.
-- in:    $1 run, $2 name, $3 payload, $4 idempotency key, $5 how many of a name may be left
-- out:   is_deaf (whether it is a graph, a gate or a map node), state (of a run that has ended, or will once what its steps did is taken back, else null),
--        isolation (of the transaction), number (null where nothing was written), earlier (the payload of an earlier signal with this key, else null), told; one
--        row where there is such a run
-- locks: its row of `waiting` (deleted); the run is locked before, by lock_runs.sql, so that the numbers have no gaps and a run that parks itself now
--        either sees the signal or is woken
-- index: run_pkey, outcome_pkey, compensation_pkey, signal_pkey, signal_key, signal_left, waiting_pkey, lease_pkey. Nothing is written above read committed, where a run that
--        has parked itself since the snapshot would not be seen.
with target as (
    select
        run.run_id,
        run.job in ('runledger.graph', 'runledger.gate', 'runledger.map') as is_deaf,
        coalesce(
            (select state from runledger.outcome where outcome.run_id = run.run_id),
            (select state from runledger.compensation where compensation.run_id = run.run_id)
        ) as state,
        (
            select payload::text
            from runledger.signal
            where signal.run_id = run.run_id and signal.name = $2 and signal.idempotency_key = $4
        ) as earlier,
        coalesce((select max(number) from runledger.signal where signal.run_id = run.run_id and signal.name = $2), 0) as last,
        (
            select min(number)
            from runledger.signal
            where signal.run_id = run.run_id and signal.name = $2 and signal.taken_by is null
        ) as first_left
    from runledger.run
    where run.run_id = $1
),
sent as (
    insert into runledger.signal (run_id, name, number, payload, idempotency_key)
    select run_id, $2, last + 1, $3::text::json, $4
    from target
    where current_setting('transaction_isolation') in ('read committed', 'read uncommitted')
        and not is_deaf
        and state is null
        and earlier is null
        and (first_left is null or last - first_left + 1 < $5)
    returning number
),
woken as (
    delete from runledger.waiting
    where run_id = $1 and state = 'waiting' and $2 = any(wait_signals) and exists (select from sent)
    returning run_id, attempt, crashes, claims
),
queued as (
    insert into runledger.ready (run_id, resource, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select woken.run_id, runledger.resource_of(run.options), run.queue, run.job, run.priority, statement_timestamp(), 'woken', woken.attempt, woken.crashes, woken.claims
    from woken
    cross join lateral (select queue, job, priority, options from runledger.run where run_id = woken.run_id offset 0) as run
),
told as (
    select runledger.notify('runledger_ready', '')
    where exists (select from woken)
        and exists (select from runledger.worker where state = 'active' and sleeping)
),
nudged as (
    select runledger.notify('runledger_nudge', $1::text)
    where exists (select from sent)
        and exists (select from runledger.lease where run_id = $1)
)
select
    is_deaf,
    state,
    current_setting('transaction_isolation') as isolation,
    (select number from sent) as number,
    earlier,
    (select count(*) from told) + (select count(*) from nudged) as told
from target

-- settle: ends attempts. Each lease that still has its token is deleted, and the run goes where the verdict says. One that fails or is cancelled goes back
--        to its queue where steps are left to be compensated, and ends as was said then, in the attempt that it was in, once there are none. What goes on below one
--        that ends so is to be cancelled: the request for that outlives its worker.
-- in:    $1 run ids, $2 tokens, $3 states, $4 outputs, $5 errors, $6 delays in microseconds, $7 instants, $8 causes, $9 attempts, $10 crashes,
--        $11 the mark of the body's transaction that this must be in, or null;
--        the state is `completed`, `failed`, `cancelled`, `queued`, `blocked`, or `paused`: queued, where the request has been taken back
-- out:   run_id, token, told, restless; the items whose fence held. The error of a cancelled one is kept with the reason that was given; a body's
--        transaction may not rest any more, as in checkpoint.sql
-- locks: the leases and requests to pause (deleted); the parents of these runs are locked before, by lock_runs.sql, where there are any, and leases of
--        workflows that fail or are cancelled by lock_lease.sql, so that a step that is being recorded is seen
-- index: lease_pkey, run_pkey, run_parent, outcome_pkey, completion_watch_pkey, cancel_pkey, pause_pkey, compensation_pkey, step_compensation, step_pkey
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
    where lease.ctid = item.spot and ($11::text is null or current_setting('runledger.body', true) = $11)
    returning
        item.run_id, item.token, item.state, item.output, item.error, item.delay_us, item.due_at, item.cause, item.attempt, item.crashes,
        lease.attempt as tried, lease.claims, lease.worker_id, lease.claimed_at
),
failing as (
    select
        held.run_id, held.attempt, held.crashes, held.claims, held.worker_id, held.claimed_at,
        coalesce(compensation.state, held.state) as state,
        coalesce(
            compensation.error,
            (
                select jsonb_set(held.error::jsonb, '{message}', to_jsonb((held.error::json ->> 'message') || ': ' || cancel.reason))::json
                from runledger.cancel
                where held.state = 'cancelled' and cancel.run_id = held.run_id and cancel.reason is not null
            ),
            held.error::json
        ) as error,
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
        and exists (
            select
            from runledger.run as child
            where child.parent_id = failing.run_id
                and (
                    not exists (select from runledger.outcome where outcome.run_id = child.run_id offset 0)
                    or exists (select from runledger.run as grandchild where grandchild.parent_id = child.run_id offset 0)
                )
            offset 0
        )
    on conflict (run_id) do nothing
),
to_undo as (
    insert into runledger.ready (run_id, resource, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select
        failing.run_id, runledger.resource_of(run.options), run.queue, run.job, run.priority, statement_timestamp(), 'compensating',
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
        coalesce(held.due_at, statement_timestamp() + held.delay_us * interval '1 microsecond'),
        held.cause, held.attempt, held.crashes, held.claims
    from held
    cross join lateral (select * from runledger.run where run_id = held.run_id offset 0) as run
    where held.state = 'queued' or (held.state = 'paused' and held.run_id not in (select run_id from granted))
),
blocked as (
    insert into runledger.waiting (run_id, state, error, attempt, crashes, claims, since)
    select run_id, state, error::json, attempt, crashes, claims, statement_timestamp()
    from held
    where state = 'blocked'
),
paused as (
    insert into runledger.waiting (run_id, state, ready_at, reason, attempt, crashes, claims, since)
    select run_id, state, statement_timestamp(), granted.reason, attempt, crashes, claims, statement_timestamp()
    from held
    join granted using (run_id)
),
tried as (
    insert into runledger.attempt (run_id, claims, attempt, worker_id, started_at, error)
    select run_id, claims, tried, worker_id, claimed_at, error::json
    from held
    where state in ('queued', 'blocked') and error is not null
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
    run_id, token, (select count(*) from told) as told,
    case when $11::text is not null then set_config('idle_in_transaction_session_timeout', '10s', true) end as restless
from held

-- settle_completed: ends attempts of which every one completed, as nearly all do. A batch with another end goes by settle.
-- in:    $1 run ids, $2 tokens, $3 outputs
-- out:   held, told; one row: the positions from 1 of the items whose fence held, and how many waiters are told
-- locks: the leases (deleted); the parents of these runs are locked before, by lock_runs.sql, where there are any
-- index: lease_pkey, completion_watch_pkey
with held as (
    delete from runledger.lease
    using (
        select item.run_id, item.output, item.position, spot
        from unnest($1::uuid[], $2::uuid[], $3::text[]) with ordinality as item (run_id, token, output, position)
        cross join lateral (select ctid as spot from runledger.lease where run_id = item.run_id and token = item.token offset 0) as found
    ) as item
    where lease.ctid = item.spot
    returning item.run_id, item.output, item.position, lease.attempt, lease.worker_id, lease.claimed_at
),
ended as (
    insert into runledger.outcome (run_id, state, output, attempt, worker_id, started_at)
    select run_id, 'completed', output::json, attempt, worker_id, claimed_at
    from held
),
unwatched as (
    delete from runledger.completion_watch
    where run_id = any (array(select run_id from held))
    returning run_id
),
told as (
    select runledger.notify('runledger_ended', run_id::text)
    from unwatched
)
select array_agg(position) as held, (select count(*) from told) as told
from held

-- suspend: parks a run until something that it waits for comes, or puts it back at once where that has come already, or a child is not there: a failover
--        has lost its start, which the replay repeats. The end of another run's child, taken over from the run's origin, does not wake this one: it looks
--        every 5 seconds.
-- in:    $1 run, $2 token, $3 children of which one must end, $4 children of which all must, $5 names of signals of which one must come, $6 the instant to
--        wake at anyway (null: none), $7 attempts spent, $8 crashes
-- out:   parked (false where the run was put back); one row where the fence held
-- locks: the lease (deleted); the run is locked before, by lock_runs.sql, so that what comes now is either seen here or wakes it
-- index: lease_pkey, outcome_pkey, run_pkey, signal_left
with held as (
    delete from runledger.lease
    where run_id = $1 and token = $2
    returning run_id, claims
),
ended as (
    select
        exists (select from runledger.outcome where run_id = any($3::uuid[]))
        or (
            cardinality($4::uuid[]) > 0
            and not exists (
                select
                from unnest($4::uuid[]) as child (run_id)
                where not exists (select from runledger.outcome where outcome.run_id = child.run_id offset 0)
            )
        )
        or count(*) < cardinality($3::uuid[] || $4::uuid[])
        or exists (
            select
            from unnest($5::text[]) as awaited (name)
            cross join lateral (
                select
                from runledger.signal
                where signal.run_id = $1 and signal.name = awaited.name and signal.taken_by is null
                limit 1
            ) as untaken
        ) as already,
        case when count(*) filter (where there.parent_id is distinct from $1) > 0 then statement_timestamp() + interval '5 seconds' end as look_at
    from unnest($3::uuid[] || $4::uuid[]) as child (run_id)
    cross join lateral (select parent_id from runledger.run where run.run_id = child.run_id offset 0) as there
),
parked as (
    insert into runledger.waiting (run_id, state, wait_any, wait_all, wait_signals, wake_at, attempt, crashes, claims, since)
    select held.run_id, 'waiting', $3::uuid[], $4::uuid[], $5::text[], least($6::timestamptz, ended.look_at), $7, $8, held.claims, statement_timestamp()
    from held, ended
    where not ended.already
    returning run_id
),
queued as (
    insert into runledger.ready (run_id, resource, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select held.run_id, runledger.resource_of(run.options), run.queue, run.job, run.priority, statement_timestamp(), 'woken', $7, $8, held.claims
    from held
    cross join ended
    cross join lateral (select queue, job, priority, options from runledger.run where run_id = held.run_id offset 0) as run
    where ended.already
)
select exists (select from parked) as parked
from held

-- wake_parents: puts parents that wait for one of these ended children, or for the last of several, back into their queues.
-- in:    $1 ids of runs that ended in this transaction
-- out:   run_id, told; the parents woken
-- locks: the parents' rows of `waiting` (deleted); the parents are locked before, by lock_runs.sql, so that of two last children one sees the other
-- index: run_pkey, waiting_pkey, outcome_pkey, lease_pkey
with parent as (
    select distinct run.parent_id as run_id
    from unnest($1::uuid[]) as ended (run_id)
    cross join lateral (select parent_id from runledger.run where run.run_id = ended.run_id offset 0) as run
    where run.parent_id is not null
),
woken as (
    delete from runledger.waiting
    where waiting.run_id = any (array(select run_id from parent))
        and waiting.state = 'waiting'
        and (
            waiting.wait_any && $1::uuid[]
            or (
                waiting.wait_all && $1::uuid[]
                and not exists (
                    select
                    from unnest(waiting.wait_all) as child (run_id)
                    where not exists (select from runledger.outcome where outcome.run_id = child.run_id offset 0)
                )
            )
        )
    returning waiting.run_id, waiting.attempt, waiting.crashes, waiting.claims
),
queued as (
    insert into runledger.ready (run_id, resource, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select woken.run_id, runledger.resource_of(run.options), run.queue, run.job, run.priority, statement_timestamp(), 'woken', woken.attempt, woken.crashes, woken.claims
    from woken
    cross join lateral (select queue, job, priority, options from runledger.run where run_id = woken.run_id offset 0) as run
),
told as (
    select runledger.notify('runledger_ready', '')
    where exists (select from woken)
        and exists (select from runledger.worker where state = 'active' and sleeping)
),
nudged as (
    select runledger.notify('runledger_nudge', parent.run_id::text)
    from parent
    where exists (select from runledger.lease where lease.run_id = parent.run_id offset 0)
)
select run_id, (select count(*) from told) + (select count(*) from nudged) as told
from woken

-- worker_bury: declares a worker dead. Final: the process, if it comes back, takes a new number.
-- in:    $1 worker, $2 seconds of silence that must still hold, $3 why
-- out:   worker_id; one row where it was buried now
-- locks: the worker's row; the silence is tested again after a wait for it
-- index: worker_pkey
update runledger.worker
set state = 'dead', sleeping = false, died_at = clock_timestamp(), died_why = $3
where worker_id = $1 and state <> 'dead' and heartbeat_at <= clock_timestamp() - make_interval(secs => $2)
returning worker_id

-- worker_register: makes a worker known. Its number is the key of the lock that it takes next.
-- in:    $1 name, $2 version, $3 session name, $4 jobs, $5 queues
-- out:   worker_id, started_at (by the database's clock)
-- locks: none
-- index: worker_pkey
insert into runledger.worker (name, version, session_name, jobs, queues)
values ($1, $2, $3, $4, $5)
returning worker_id, started_at
