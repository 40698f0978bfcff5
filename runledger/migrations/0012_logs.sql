-- What bodies log, where a worker keeps it (`App::keep_logs`): line by line, numbered by run in the order of the commits.
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
