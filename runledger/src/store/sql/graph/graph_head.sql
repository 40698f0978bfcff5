-- graph_head: reads the name, the state and the request of a graph.
-- in:    $1 graph
-- out:   graph, state, input; one row if it exists
-- locks: none
-- index: run_pkey, and the primary keys under runledger.run_state
select
    run.graph,
    standing.state,
    run.input::text as input
from runledger.run
cross join lateral (select state from runledger.run_state where run_state.run_id = run.run_id offset 0) as standing
where run.run_id = $1 and run.graph is not null
