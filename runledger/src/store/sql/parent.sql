-- parent: the run above another: the one that has started it, or the graph that it is a node of.
-- in:    $1 run
-- out:   parent_id (null: none), is_node; one row where the run exists
-- locks: none
-- index: run_pkey
select parent_id, node is not null as is_node
from runledger.run
where run_id = $1
