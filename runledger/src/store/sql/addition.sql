-- addition: what an addition to a graph must know of it: whether it goes on, how large it is, and what was added under the same key before.
-- in:    $1 graph, $2 key
-- out:   graph (null: the run is none), state (null: it goes on), n_nodes, request (null: nothing was); one row where there is such a run
-- locks: none; the run is locked before, by lock_runs.sql
-- index: run_pkey, outcome_pkey, run_parent, addition_pkey
select
    run.graph,
    (select state from runledger.outcome where outcome.run_id = run.run_id) as state,
    (select pg_catalog.count(*) from runledger.run as node where node.parent_id = run.run_id and node.node is not null) as n_nodes,
    (select request from runledger.addition where addition.graph_id = run.run_id and addition.key = $2)::text as request
from runledger.run
where run.run_id = $1
