-- Graphs. A graph is a run, and each of its nodes is a run below it. A node waits in `waiting`
-- until its dependencies have ended. See docs/decisions/0011-graphs.md.

-- The dependencies of nodes.
create table runledger.edge (
    dependant_id uuid not null,
    run_id uuid not null,
    -- Whether any end satisfies the dependant, or only success.
    on_terminal boolean not null,
    -- The parameters of the dependant that receive the output or the end of the run.
    parameters text[] not null,
    primary key (dependant_id, run_id)
);

create index edge_run on runledger.edge (run_id);

-- What nodes and graphs wait for. `remaining` of a node counts its dependencies that have not
-- ended; `remaining` of a graph counts its nodes. A node that ends gives its weight to a node that
-- waits for it; if there is none, the graph subtracts it. So few ends of nodes write the graph's
-- row, and it reaches 0 exactly at the end of the last node.
create table runledger.graph_counter (
    run_id uuid primary key,
    remaining integer not null check (remaining >= 0),
    weight integer not null check (weight >= 1)
)
with (fillfactor = 50);

-- The type that each gate accepts, for programs without its Rust type. A gate without a row accepts
-- any value.
create table runledger.gate (
    run_id uuid primary key,
    accepts json not null
);

-- Who decided a gate, and why.
create table runledger.gate_decision (
    run_id uuid primary key,
    decided_by text,
    reason text,
    decided_at timestamptz not null default statement_timestamp()
);

-- The epoch of a gate's links. A link carries the epoch in which it was signed, and a revocation
-- begins a new one. A gate without a row has the nil epoch.
create table runledger.link_epoch (
    run_id uuid primary key,
    epoch uuid not null
);

-- The additions to graphs. The same request under a key is the same addition; another one is
-- refused.
create table runledger.addition (
    graph_id uuid not null,
    key text collate "C" not null,
    -- The node that adds, and the added nodes by name, in a canonical form.
    request json not null,
    created_at timestamptz not null default statement_timestamp(),
    primary key (graph_id, key)
);

-- The ends of a node's dependencies that have parameters of the node.
create function runledger.dependency_outcomes(dependant_id uuid) returns json
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select json_agg(json_build_array(edge.run_id, edge.on_terminal, edge.parameters, outcome.state, outcome.output, outcome.error))
    from runledger.edge
    cross join lateral (select * from runledger.outcome where outcome.run_id = edge.run_id offset 0) as outcome
    where edge.dependant_id = $1 and edge.parameters <> '{}';
$$;

-- The error of a node that cannot succeed any more, from the name and the end of the dependency
-- that did not succeed. A dependant of a skipped node is skipped.
create function runledger.unreachable(cause text, cause_state text) returns json
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select json_build_object(
        'kind', case cause_state when 'skipped' then 'skipped' else 'cancelled' end,
        'message', format(
            '%s: the node `%s` %s, and this one needs its success',
            case cause_state when 'skipped' then 'skipped' else 'cancelled' end,
            cause,
            case cause_state when 'failed' then 'failed' when 'skipped' then 'was skipped' else 'was cancelled' end
        )
    );
$$;
