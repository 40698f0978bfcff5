-- Tunings: what an operator says of a job in the place of its own definition. No deploy changes them. See docs/control.md.

create table runledger.tuning (
    -- One of the names of the job, without a version.
    job text collate "C" primary key,
    -- Why no run of it is claimed; null: they are.
    disabled text,
    -- Each in the place of the job's own, where it is not null.
    max_attempts integer check (max_attempts > 0),
    timeout_ms bigint check (timeout_ms > 0),
    backoff_first_ms bigint check (backoff_first_ms >= 0),
    backoff_cap_ms bigint check (backoff_cap_ms >= backoff_first_ms),
    changed_at timestamptz not null default clock_timestamp(),
    check ((backoff_first_ms is null) = (backoff_cap_ms is null))
);
