-- graph_parts: reads the definition of a graph, for recovering it as a new graph.
-- in:    $1 graph
-- out:   run_id, name, is_graph, state, job, tenant, queue, priority, input, options, accepts (of a
--        gate), needs; the graph first
-- locks: none
-- index: run_pkey, run_parent, edge_pkey, gate_pkey, and the primary keys under runledger.run_state
--
-- `name` is the name of the graph or of the node. `needs` lists the dependencies: the name, whether
-- any outcome suffices, and the parameters. It is null if there are none.
with part as (
    select run_id
    from runledger.run
    where run_id = $1 and graph is not null
    union all
    select run_id
    from runledger.run
    where parent_id = $1 and node is not null
)
select
    run.run_id,
    coalesce(run.graph, run.node) as name,
    run.graph is not null as is_graph,
    standing.state,
    run.job,
    run.tenant,
    run.queue,
    run.priority,
    run.input::text as input,
    run.options::text as options,
    (select accepts from runledger.gate where gate.run_id = run.run_id)::text as accepts,
    (
        select pg_catalog.json_agg(pg_catalog.json_build_array(needed.node, edge.on_terminal, edge.parameters))::text
        from runledger.edge
        cross join lateral (select node from runledger.run as other where other.run_id = edge.run_id offset 0) as needed
        where edge.dependant_id = run.run_id
    ) as needs
from part
cross join lateral (select * from runledger.run where run.run_id = part.run_id offset 0) as run
cross join lateral (select state from runledger.run_state where run_state.run_id = part.run_id offset 0) as standing
order by is_graph desc, name
