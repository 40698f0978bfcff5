-- graph_nodes: lists the nodes of a graph with their states, in pages, by name.
-- in:    $1 graph, $2 the last name of the previous page (null: first page), $3 how many
-- out:   run_id, node, job, state, attempt, needs (how many live dependencies), needed (names of
--        all dependencies), started_at, finished_at, error, decided_by, reason, decided_at
-- locks: none
-- index: run_parent, graph_counter_pkey, edge_pkey, gate_decision_pkey, and the primary keys under
--        runledger.run_state
with named as (
    select run_id, node
    from runledger.run
    where parent_id = $1 and node is not null and ($2::text is null or node > $2)
    order by node
    limit $3
)
select
    named.run_id,
    named.node,
    standing.job,
    standing.state,
    standing.attempt,
    coalesce((select remaining from runledger.graph_counter where graph_counter.run_id = named.run_id), 0) as needs,
    array(
        select other.node
        from runledger.edge
        cross join lateral (select run.node from runledger.run where run.run_id = edge.run_id offset 0) as other
        where edge.dependant_id = named.run_id
        order by other.node
    ) as needed,
    standing.started_at,
    standing.finished_at,
    standing.error::text as error,
    gate_decision.decided_by,
    gate_decision.reason,
    gate_decision.decided_at
from named
cross join lateral (select * from runledger.run_state where run_state.run_id = named.run_id offset 0) as standing
left join lateral (select * from runledger.gate_decision where gate_decision.run_id = named.run_id offset 0) as gate_decision on true
order by named.node
