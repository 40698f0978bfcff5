-- graph_ends: lists the nodes of a graph that ended without completing, and its result node.
-- in:    $1 graph, $2 the name of its result node (null: none)
-- out:   run_id, node, state, output (of the result node), error, is_needed (a node that was not
--        skipped depends on it)
-- locks: none
-- index: run_parent, outcome_pkey, edge_run
select
    run.run_id,
    run.node,
    outcome.state,
    case when run.node = $2 then outcome.output end::text as output,
    outcome.error::text as error,
    exists (
        select
        from runledger.edge
        where edge.run_id = run.run_id
            and not exists (select from runledger.outcome as its where its.run_id = edge.dependant_id and runledger.option_of(its.error, 'kind') = 'skipped' offset 0)
        offset 0
    ) as is_needed
from runledger.run
cross join lateral (select * from runledger.outcome where outcome.run_id = run.run_id offset 0) as outcome
where run.parent_id = $1 and run.node is not null and (outcome.state <> 'completed' or run.node = $2)
order by outcome.finished_at, run.run_id
