-- graph_edges: lists the edges of a graph, in no order.
-- in:    $1 graph
-- out:   dependant, needed (names), on_terminal, parameters
-- locks: none
-- index: run_parent, edge_pkey, run_pkey
select
    run.node as dependant,
    needed.node as needed,
    edge.on_terminal,
    edge.parameters
from runledger.run
cross join lateral (select run_id, on_terminal, parameters from runledger.edge where edge.dependant_id = run.run_id offset 0) as edge
cross join lateral (select node from runledger.run as other where other.run_id = edge.run_id offset 0) as needed
where run.parent_id = $1 and run.node is not null
