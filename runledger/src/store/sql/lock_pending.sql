-- lock_pending: locks what the end of a node that no worker holds will count, before anything that stands behind it: the same rows in the same order as
--               release.sql, so that the two do not meet crosswise. Nothing for a run that is neither a node nor a graph.
-- in:    $1 run
-- out:   run_id
-- locks: rows of `pending`, in the order of their ids
-- index: edge_run, pending_pkey
with recursive reached as (
    select $1::uuid as run_id
    union
    select edge.dependant_id
    from reached
    cross join lateral (select dependant_id from runledger.edge where edge.run_id = reached.run_id and not on_terminal offset 0) as edge
)
select run_id
from runledger.pending
where run_id = any (
    array(
        select run_id from reached
        union
        select edge.dependant_id
        from reached
        cross join lateral (select dependant_id from runledger.edge where edge.run_id = reached.run_id offset 0) as edge
    )
)
order by run_id
for update
