-- The engine's tables. A run is one immutable row; where it stands is the one narrow row that it has in `ready`, `lease`, `waiting` or
-- `outcome`. Nothing on the hot path updates a row in place: see docs/decisions/0001-hot-path.md. Text that an index orders is compared by its bytes:
-- an upgrade of the system's locales would leave the index in another order than its searches expect, and runs unfound.

-- What was asked for. Never updated, but where a person moves a run to another version of its code (`pin`); locked (`for no key update`) by whatever must be serial for one run: suspending, waking, cancelling.
create table runledger.run (
    run_id uuid primary key,
    -- With the version of its code, after the first: `checkout@2`.
    job text not null,
    tenant text not null,
    queue text not null,
    priority smallint not null,
    input json not null,
    options json,
    idempotency_key text,
    parent_id uuid,
    -- How many runs are above it: null for none.
    depth smallint,
    -- The run that this one is another go at: made by `run_again`, `fork` or `revive`.
    origin_id uuid,
    start_at timestamptz not null,
    created_at timestamptz not null default statement_timestamp()
);

create index run_parent on runledger.run (parent_id) where parent_id is not null;
create index run_origin on runledger.run (origin_id) where origin_id is not null;

-- Runs that may be claimed, at their instant. Inserted and deleted, never updated.
create table runledger.ready (
    run_id uuid primary key,
    queue text collate "C" not null,
    job text collate "C" not null,
    priority smallint not null,
    ready_at timestamptz not null,
    cause text not null check (cause in ('enqueued', 'retried', 'slept', 'released', 'crashed', 'woken', 'resumed', 'undoing', 'continued')),
    attempt integer not null check (attempt >= 0),
    crashes integer not null check (crashes >= 0),
    claims integer not null check (claims >= 0)
)
with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 1);

create index ready_lane on runledger.ready (queue, job, priority, ready_at, run_id);

-- Runs that a worker holds. The token, made by the claiming client, is the fence of every write for the attempt.
create table runledger.lease (
    run_id uuid primary key,
    token uuid not null,
    worker_id bigint not null,
    attempt integer not null check (attempt >= 1),
    crashes integer not null check (crashes >= 0),
    claims integer not null check (claims >= 1),
    claimed_at timestamptz not null
)
with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 1);

create index lease_worker on runledger.lease (worker_id);

-- Runs that time alone does not wake: for a child or a signal (`waiting`), or for a person (`blocked`: something is wrong; `paused`: somebody said so).
create table runledger.waiting (
    run_id uuid primary key,
    state text not null check (state in ('waiting', 'blocked', 'paused')),
    -- What wakes it: the end of one of these runs, the end of the last of those, or a signal of one of these names.
    wait_any uuid[],
    wait_all uuid[],
    wait_signals text[],
    wake_at timestamptz,
    -- Of a paused run: the instant before which it does not go on, and why it is paused.
    ready_at timestamptz,
    reason text,
    error json,
    attempt integer not null check (attempt >= 0),
    crashes integer not null check (crashes >= 0),
    claims integer not null check (claims >= 0),
    since timestamptz not null,
    check (num_nonnulls(wait_any, wait_all, wait_signals) = case state when 'waiting' then 3 else 0 end),
    check ((state = 'blocked') = (error is not null)),
    check ((state = 'paused') = (ready_at is not null))
);

create index waiting_wake on runledger.waiting (wake_at) where wake_at is not null;

-- How a run ended. Written once.
create table runledger.outcome (
    run_id uuid primary key,
    state text not null check (state in ('completed', 'failed', 'cancelled')),
    output json,
    error json,
    attempt integer not null,
    worker_id bigint,
    started_at timestamptz,
    finished_at timestamptz not null default statement_timestamp(),
    check ((state = 'completed') = (output is not null)),
    check ((state = 'completed') = (error is null))
);

-- What a workflow's steps gave. Written once, read by replay.
create table runledger.step (
    run_id uuid not null,
    key text collate "C" not null,
    ordinal bigint not null,
    fingerprint bigint not null,
    output json,
    error json,
    seen_len integer not null,
    seen bigint[],
    claims integer not null,
    -- The call that takes back what the step did: the name of its job, its input, its options.
    undo json,
    recorded_at timestamptz not null default statement_timestamp(),
    primary key (run_id, key),
    check ((output is null) <> (error is null)),
    check (undo is null or output is not null)
);

create index step_undo on runledger.step (run_id) where undo is not null;

-- Runs that are to fail or to be cancelled once what their steps did is taken back: their code is not run any more.
create table runledger.undo (
    run_id uuid primary key,
    state text not null check (state in ('failed', 'cancelled')),
    error json not null,
    since timestamptz not null default statement_timestamp()
);

-- Whether a run has a step whose undo is not recorded.
create function runledger.is_to_undo(run_id uuid) returns boolean
language sql stable
as $$
    select exists (
        select
        from runledger.step
        where step.run_id = $1
            and step.undo is not null
            and not exists (select from runledger.step as undone where undone.run_id = $1 and undone.key = 'undo[' || step.key || ']')
    );
$$;

-- Values sent to runs from outside, numbered by run and name under the lock of the run. A step takes the first of its name that is left.
create table runledger.signal (
    run_id uuid not null,
    name text collate "C" not null,
    number integer not null check (number >= 1),
    payload json not null,
    idempotency_key text collate "C" not null,
    sent_at timestamptz not null default statement_timestamp(),
    -- The key of the step that has taken it.
    taken_by text,
    primary key (run_id, name, number)
);

create unique index signal_key on runledger.signal (run_id, name, idempotency_key);
create index signal_left on runledger.signal (run_id, name, number) where taken_by is null;

-- Attempts that failed and were followed by another (the last one stands in `outcome`), of runs and, with a key, of steps.
create table runledger.attempt (
    run_id uuid not null,
    step_key text collate "C" not null default '',
    claims integer not null,
    attempt integer not null,
    worker_id bigint not null,
    started_at timestamptz,
    ended_at timestamptz not null default statement_timestamp(),
    error json not null,
    primary key (run_id, step_key, claims, attempt)
);

-- Runs whose cancellation has been asked for and has not yet taken place.
create table runledger.cancel (
    run_id uuid primary key,
    reason text,
    requested_at timestamptz not null default statement_timestamp()
);

-- Runs whose pause has been asked for and has not yet taken place.
create table runledger.pause (
    run_id uuid primary key,
    reason text not null,
    requested_at timestamptz not null default statement_timestamp()
);

-- How runs were moved to other versions of their code.
create table runledger.pin (
    run_id uuid not null,
    number bigint not null check (number >= 1),
    from_job text not null,
    to_job text not null,
    pinned_at timestamptz not null default statement_timestamp(),
    primary key (run_id, number)
);

-- The deadlines of runs that have one, each until it is over: a run that ends before does not touch its own.
create table runledger.deadline (
    run_id uuid primary key,
    deadline_at timestamptz not null
);

create index deadline_due on runledger.deadline (deadline_at);

-- Runs whose end somebody waits for: a settlement notifies only for these.
create table runledger.watch (
    run_id uuid primary key,
    since timestamptz not null default statement_timestamp()
);

-- A number that no other worker has had: random, because a counter goes back with a failover that loses commits, and would give a number twice.
-- 48 bits: exact in every language that knows only doubles.
create function runledger.new_worker_id() returns bigint
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    select ('x' || translate(left(gen_random_uuid()::text, 13), '-', ''))::bit(48)::bigint;
$$;

-- Worker processes, living and dead. The number is also the key of the session advisory lock that a living one holds.
create table runledger.worker (
    worker_id bigint primary key default runledger.new_worker_id(),
    name text not null,
    version text not null,
    -- The application name of the process's sessions, by which those of a dead worker are ended.
    session_name text not null,
    state text not null default 'active' check (state in ('active', 'draining', 'dead')),
    -- The incarnation of the server in which the lock was taken; null where the lock is no evidence (behind a pooler).
    lock_incarnation text,
    sleeping boolean not null default false,
    drain_requested boolean not null default false,
    jobs text[] not null,
    queues text[] not null,
    heartbeat_at timestamptz not null default clock_timestamp(),
    started_at timestamptz not null default clock_timestamp(),
    died_at timestamptz,
    died_why text,
    check ((state = 'dead') = (died_at is not null))
)
with (fillfactor = 50);

create index worker_living on runledger.worker (worker_id) where state <> 'dead';

-- Notifies, unless the queue of notifications is more than half full: one that is full fails the commit of whoever notifies. A notification is a hint.
-- Without settings of its own, so that statements contain it instead of calling it.
create function runledger.notify(channel text, payload text) returns void
language sql volatile
as $$
    select case when pg_notification_queue_usage() < 0.5 then pg_notify(channel, payload) end;
$$;

-- Emptied by a crash of the server, so that its id changes whenever session locks may have vanished unnoticed.
create unlogged table runledger.incarnation (
    one boolean primary key default true check (one),
    id uuid not null default gen_random_uuid()
);

-- Two statements, each with a snapshot of its own: in one, the loser of a race for the row would neither insert nor see it.
create function runledger.server_incarnation() returns text
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    insert into runledger.incarnation default values
    on conflict do nothing;
    select incarnation.id::text || '/' || extract(epoch from pg_postmaster_start_time())::text
    from runledger.incarnation;
$$;

-- Workflows that have begun anew with another input, as the same runs: their recorded steps are those since then.
create table runledger.continuation (
    run_id uuid primary key,
    input json not null,
    -- How often it has begun anew.
    slice integer not null check (slice >= 1),
    -- The claim that ended so: what was tried under it and before counts no more.
    claims integer not null,
    since timestamptz not null default statement_timestamp()
);

-- What bodies have said last of how far they are: of a run, or with a key of a step.
create table runledger.progress (
    run_id uuid not null,
    step_key text collate "C" not null default '',
    value json not null,
    noted_at timestamptz not null default statement_timestamp(),
    primary key (run_id, step_key)
)
with (fillfactor = 50);

-- What bodies and workflows emit, line by line, numbered by run in the order of the commits. A line is known by who said it (a step, a branch of the
-- workflow, the run itself), by its number there and by what it says, so that a replay or another try that says it again adds nothing.
create table runledger.output (
    run_id uuid not null,
    position bigint not null check (position >= 1),
    step_key text collate "C" not null,
    number integer not null check (number >= 1),
    fingerprint bigint not null,
    value json not null,
    -- Of this line and all before it.
    bytes bigint not null,
    emitted_at timestamptz not null default statement_timestamp(),
    primary key (run_id, position)
);

create unique index output_line on runledger.output (run_id, step_key, number, fingerprint);

-- Where each run stands, for people and tools: one row and one state a run.
create view runledger.run_state as
select
    run.run_id,
    run.job,
    run.tenant,
    run.queue,
    run.priority,
    run.idempotency_key,
    run.parent_id,
    run.origin_id,
    run.start_at,
    run.created_at,
    case
        when outcome.run_id is not null then outcome.state
        when lease.run_id is not null then 'running'
        when waiting.run_id is not null then waiting.state
        else 'queued'
    end as state,
    coalesce(outcome.attempt, lease.attempt, waiting.attempt, ready.attempt) as attempt,
    coalesce(lease.crashes, waiting.crashes, ready.crashes, 0) as crashes,
    outcome.run_id is null and exists (select from runledger.undo where undo.run_id = run.run_id) as undoing,
    ready.cause,
    coalesce(ready.ready_at, waiting.ready_at) as ready_at,
    coalesce(outcome.worker_id, lease.worker_id) as worker_id,
    coalesce(outcome.started_at, lease.claimed_at) as started_at,
    outcome.finished_at,
    outcome.output,
    coalesce(outcome.error, waiting.error) as error,
    waiting.reason as pause_reason
from runledger.run
left join runledger.ready using (run_id)
left join runledger.lease using (run_id)
left join runledger.waiting using (run_id)
left join runledger.outcome using (run_id);
