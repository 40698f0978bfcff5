-- parent: returns the parent of a run: the run that started it, or its graph.
-- in:    $1 run
-- out:   parent_id (null: none), is_node; one row if the run exists
-- locks: none
-- index: run_pkey
select parent_id, node is not null as is_node
from runledger.run
where run_id = $1
