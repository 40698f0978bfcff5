-- addition: reads what an addition needs to know about its graph: the outcome, the size, and an
--           earlier addition with the same key.
-- in:    $1 graph, $2 key
-- out:   graph (null: not a graph), state (null: live), n_nodes, request (null: no earlier
--        addition); one row if the run exists
-- locks: none; lock_runs.sql has locked the run
-- index: run_pkey, outcome_pkey, run_parent, addition_pkey
select
    run.graph,
    (select state from runledger.outcome where outcome.run_id = run.run_id) as state,
    (select pg_catalog.count(*) from runledger.run as node where node.parent_id = run.run_id and node.node is not null) as n_nodes,
    (select request from runledger.addition where addition.graph_id = run.run_id and addition.key = $2)::text as request
from runledger.run
where run.run_id = $1
