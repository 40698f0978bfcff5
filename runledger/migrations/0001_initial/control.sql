-- What people and deadlines ask of runs and jobs.

-- Cancel requests that have not taken effect.
create table runledger.cancel (
    run_id uuid primary key,
    reason text,
    requested_at timestamptz not null default statement_timestamp()
);

-- Pause requests that have not taken effect.
create table runledger.pause (
    run_id uuid primary key,
    reason text not null,
    requested_at timestamptz not null default statement_timestamp()
);

-- The deadlines of runs. A row stays until its deadline, also if the run has ended.
create table runledger.deadline (
    run_id uuid primary key,
    deadline_at timestamptz not null
);

create index deadline_due on runledger.deadline (deadline_at);

-- Runs whose end a client waits for. Only the end of such a run sends a notification.
create table runledger.completion_watch (
    run_id uuid primary key,
    since timestamptz not null default statement_timestamp()
);

-- The moves of runs to other versions of their code.
create table runledger.pin (
    run_id uuid not null,
    number bigint not null check (number >= 1),
    from_job text not null,
    to_job text not null,
    pinned_at timestamptz not null default statement_timestamp(),
    primary key (run_id, number)
);

-- Overrides of job definitions. A deploy does not change them.
create table runledger.job_override (
    -- One of the names of the job, without a version.
    job text collate "C" primary key,
    -- Why no run of the job is claimed. Null if runs are claimed.
    disabled text,
    -- A null keeps the value of the definition.
    max_attempts integer check (max_attempts > 0),
    timeout_ms bigint check (timeout_ms > 0),
    backoff_first_ms bigint check (backoff_first_ms >= 0),
    backoff_cap_ms bigint check (backoff_cap_ms >= backoff_first_ms),
    changed_at timestamptz not null default clock_timestamp(),
    check ((backoff_first_ms is null) = (backoff_cap_ms is null))
);

-- Configurations that bodies read. A deploy does not change them.
create table runledger.config (
    -- One of the names of the job, without a version.
    job text collate "C",
    -- The version of the configuration's form, which the reading code names. Independent of the
    -- versions of the job.
    version integer check (version > 0),
    config json not null check (json_typeof(config) = 'object'),
    changed_at timestamptz not null default clock_timestamp(),
    primary key (job, version)
);
