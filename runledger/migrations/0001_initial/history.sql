-- The records of executing runs.

-- The recorded steps of workflows. Written once, read by replay.
create table runledger.step (
    run_id uuid not null,
    key text collate "C" not null,
    ordinal bigint not null,
    fingerprint bigint not null,
    output json,
    error json,
    seen_len integer not null,
    seen bigint[],
    -- 0 for a step that a fork or a revive copied from another run.
    claims integer not null,
    -- The call that compensates the step: the name of its job, its input, its options.
    compensation json,
    recorded_at timestamptz not null default statement_timestamp(),
    primary key (run_id, key),
    check ((output is null) <> (error is null)),
    check (compensation is null or output is not null)
);

create index step_compensation on runledger.step (run_id) where compensation is not null;

-- Runs that fail or are cancelled as soon as their steps are compensated. Their code does not
-- execute again.
create table runledger.compensation (
    run_id uuid primary key,
    state text not null check (state in ('failed', 'cancelled')),
    error json not null,
    since timestamptz not null default statement_timestamp()
);

-- Whether a step of the run waits for its compensation. Copied steps belong to the run that
-- executed them, and are not compensated here.
create function runledger.needs_compensation(run_id uuid) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select exists (
        select
        from runledger.step
        where step.run_id = $1
            and step.compensation is not null
            and step.claims > 0
            and not exists (select from runledger.step as compensated where compensated.run_id = $1 and compensated.key = 'compensate[' || step.key || ']')
    );
$$;

-- Signals, numbered by run and name under the lock of the run. A step takes the first one of its
-- name that no step has taken.
create table runledger.signal (
    run_id uuid not null,
    name text collate "C" not null,
    number integer not null check (number >= 1),
    payload json not null,
    idempotency_key text collate "C" not null,
    sent_at timestamptz not null default statement_timestamp(),
    -- The key of the step that took it.
    taken_by text,
    -- The slice of the run in which it was taken: each `continue_as_new` begins a slice without
    -- steps. Negative if the run that this one revives took it.
    taken_in integer not null default 0,
    primary key (run_id, name, number)
);

create unique index signal_key on runledger.signal (run_id, name, idempotency_key);
create index signal_left on runledger.signal (run_id, name, number) where taken_by is null;

-- Workflows that continued as new. Their recorded steps are those since then.
create table runledger.continuation (
    run_id uuid primary key,
    input json not null,
    -- How often the run has continued.
    slice integer not null check (slice >= 1),
    -- The claim that ended with the continuation. Tries up to it no longer count.
    claims integer not null,
    since timestamptz not null default statement_timestamp()
);

-- The last reported progress of a run, or of a step.
create table runledger.progress (
    run_id uuid not null,
    -- Empty for the run itself.
    step_key text collate "C" not null default '',
    value json not null,
    noted_at timestamptz not null default statement_timestamp(),
    primary key (run_id, step_key)
)
with (fillfactor = 50);

-- Emitted lines, numbered by run in the order of the commits. A line is identified by who emitted
-- it (a step, a branch, or the run itself), its number there, and its content. So a replay or
-- another try adds no line twice.
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

-- Log lines of bodies, if a worker stores them (`App::keep_logs`), numbered by run in the order of
-- the commits.
create table runledger.log (
    run_id uuid not null,
    number bigint not null check (number >= 1),
    -- Empty for the run itself.
    step_key text not null,
    attempt integer not null,
    level text not null check (level in ('ERROR', 'WARN', 'INFO', 'DEBUG', 'TRACE')),
    target text not null,
    -- The message and the fields.
    line json not null,
    -- Of this line and all before it.
    bytes bigint not null,
    logged_at timestamptz not null,
    primary key (run_id, number)
);
