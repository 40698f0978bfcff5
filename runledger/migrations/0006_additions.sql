-- Additions to graphs: nodes that are written while another node of the graph, the window, goes on. See docs/decisions/0011-graphs.md.

-- What was added to a graph under a key: the same again is the same addition, another one under its key is refused.
create table runledger.addition (
    graph_id uuid not null,
    key text collate "C" not null,
    -- The canonical form of what was asked for: the window, and the nodes by name.
    request json not null,
    created_at timestamptz not null default statement_timestamp(),
    primary key (graph_id, key)
);

-- The error of a node that cannot succeed any more, because one that it needs has not: its name, and how it ended. What needs one that was skipped is
-- skipped too.
create function runledger.hopeless(cause text, cause_state text) returns json
language sql stable
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
