-- Declared graphs. A graph is a run; each of its nodes is a run below it, which stands in `waiting` until what it needs has ended. Which node that is
-- for is counted, not looked for: see docs/decisions/0011-graphs.md.

-- Of a run that is a graph its name, of a run that is a node of the graph above it the name that it has there.
alter table runledger.run add column graph text;
alter table runledger.run add column node text;

-- What a node needs: the end of another, its success unless it says otherwise. With parameters also what the other gave.
create table runledger.edge (
    dependant_id uuid not null,
    run_id uuid not null,
    on_terminal boolean not null,
    -- The parameters of the dependant that are given what the run gave, or how it ended.
    parameters text[] not null,
    primary key (dependant_id, run_id)
);

create index edge_run on runledger.edge (run_id);

-- What nodes and graphs still wait for. Of a node: how many of the runs that it needs have not ended. Of a graph: how many of its nodes it has not heard
-- of. A node that ends is heard of by the graph only where no other node is left that waits for it; otherwise its weight goes to one of those, which tells the
-- graph of both: the row of a graph is not written at every end of a node, and is still at nought exactly when the last one has ended.
create table runledger.pending (
    run_id uuid primary key,
    remaining integer not null check (remaining >= 0),
    weight integer not null check (weight >= 1)
)
with (fillfactor = 50);

-- Who decided about a gate, and why.
create table runledger.decision (
    run_id uuid primary key,
    decided_by text,
    reason text,
    decided_at timestamptz not null default statement_timestamp()
);

-- What a run that is a node is given by those that it needs: of each parameter how the run ended that gives it.
create function runledger.given(dependant_id uuid) returns json
language sql stable
as $$
    select json_agg(json_build_array(edge.run_id, edge.on_terminal, edge.parameters, outcome.state, outcome.output, outcome.error))
    from runledger.edge
    cross join lateral (select * from runledger.outcome where outcome.run_id = edge.run_id offset 0) as outcome
    where edge.dependant_id = $1 and edge.parameters <> '{}';
$$;

create or replace view runledger.run_state as
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
    waiting.reason as pause_reason,
    run.graph,
    run.node
from runledger.run
left join runledger.ready using (run_id)
left join runledger.lease using (run_id)
left join runledger.waiting using (run_id)
left join runledger.outcome using (run_id);
