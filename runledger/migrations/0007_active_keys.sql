-- Active keys: of the runs with one key, at most one has not ended. See docs/decisions/0013-active-keys.md.

create table runledger.active (
    tenant text collate "C" not null,
    -- The oldest name of the job; of a graph `runledger.graph:` and its name.
    job text collate "C" not null,
    key text collate "C" not null,
    -- The run that has it, or was the last to have it. No foreign key: the rows go with the runs.
    run_id uuid not null,
    primary key (tenant, job, key)
);
