-- Runs. A run is one immutable row in `run`. Its state is one narrow row in `ready`, `lease`,
-- `waiting` or `outcome`. The hot path updates no row in place: see
-- docs/decisions/0001-hot-path.md.
--
-- Indexed text is compared by its bytes (`collate "C"`), because an upgrade of the system's locales
-- would make an index miss rows.

-- The enqueued runs. Never updated, except by `pin`. Locked (`for no key update`) by everything
-- that must be serial for one run: suspending, waking, cancelling.
create table runledger.run (
    run_id uuid primary key,
    -- With the version of its code, except for version 1: `checkout@2`.
    job text not null,
    tenant text not null,
    queue text not null,
    priority smallint not null,
    input json not null,
    options json,
    idempotency_key text,
    parent_id uuid,
    -- The number of runs above it. Null for none.
    depth smallint,
    -- The run that this one repeats: `rerun`, `fork` or `revive`.
    origin_id uuid,
    -- The name of the graph, if the run is one.
    graph text,
    -- The name in the graph above it, if the run is a node.
    node text,
    start_at timestamptz not null,
    created_at timestamptz not null default statement_timestamp(),
    -- The index of `ready` cannot store longer ones.
    constraint run_names_are_short check (octet_length(queue) <= 256 and octet_length(job) <= 256)
);

-- Two indexes have the id as bytes. With the statistics of an empty table, the planner would use an
-- index with the id itself to find single runs, and read all of it.

-- The children of a run, in pages.
create index run_parent on runledger.run (parent_id, uuid_send(run_id)) where parent_id is not null;
-- The runs of a tenant, the newest first. See docs/decisions/0015-lists-of-runs.md for its cost.
create index run_listed on runledger.run (tenant collate "C", created_at, uuid_send(run_id));
create index run_origin on runledger.run (origin_id) where origin_id is not null;

-- Queued runs. Rows are inserted and deleted, never updated.
create table runledger.ready (
    run_id uuid primary key,
    queue text collate "C" not null,
    job text collate "C" not null,
    priority smallint not null,
    -- The resource of which the run needs a permit, or ''. Claims without a permit pass over such
    -- runs.
    resource text collate "C" not null default '',
    ready_at timestamptz not null,
    cause text not null check (cause in ('enqueued', 'retried', 'slept', 'released', 'crashed', 'woken', 'resumed', 'compensating', 'continued')),
    attempt integer not null check (attempt >= 0),
    crashes integer not null check (crashes >= 0),
    claims integer not null check (claims >= 0)
)
with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 1);

create index ready_lane on runledger.ready (resource, queue, job, priority, ready_at, run_id);

-- Running runs. The claiming worker makes the token, and every write of the attempt is fenced by
-- it.
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

-- Runs that something other than time must wake: another run or a signal (`waiting`), or a person
-- (`blocked`, `paused`).
create table runledger.waiting (
    run_id uuid primary key,
    state text not null check (state in ('waiting', 'blocked', 'paused')),
    -- The run wakes at the end of any run of `wait_any`, of the last run of `wait_all`, or at a
    -- signal of one of these names.
    wait_any uuid[],
    wait_all uuid[],
    wait_signals text[],
    wake_at timestamptz,
    -- For a paused run: the instant before which it does not continue, and the reason.
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

-- Failed attempts of runs, and failed tries of steps, that another one followed. The last attempt
-- of a run is in `outcome`.
create table runledger.attempt (
    run_id uuid not null,
    -- Empty for the run itself.
    step_key text collate "C" not null default '',
    claims integer not null,
    attempt integer not null,
    worker_id bigint not null,
    started_at timestamptz,
    ended_at timestamptz not null default statement_timestamp(),
    error json not null,
    primary key (run_id, step_key, claims, attempt)
);

-- The runs whose attempts ended with a worker.
create index attempt_worker on runledger.attempt (worker_id, run_id) where step_key = '';

-- Active keys: of the runs with one key, at most one has not ended. See
-- docs/decisions/0013-active-keys.md.
create table runledger.active (
    tenant text collate "C" not null,
    -- The oldest name of the job. For a graph, `runledger.graph:` and its name.
    job text collate "C" not null,
    key text collate "C" not null,
    -- The run that has the key, or had it last. Without a foreign key: the row is deleted with the
    -- run.
    run_id uuid not null,
    primary key (tenant, job, key)
);

-- The job of a run at this moment. `volatile`, so that each call sees changes that were committed
-- after its statement had begun.
create function runledger.job_now(run_id uuid) returns text
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    select run.job from runledger.run where run.run_id = $1;
$$;
