-- Configurations: what an operator gives the bodies of a job to read. No deploy changes them. See docs/control.md.

create table runledger.config (
    -- One of the names of the job, without a version.
    job text collate "C",
    -- Of the form of the configuration: what the code that reads it asks for. It has nothing to do with versions of the job.
    version integer check (version > 0),
    config json not null check (json_typeof(config) = 'object'),
    changed_at timestamptz not null default clock_timestamp(),
    primary key (job, version)
);
