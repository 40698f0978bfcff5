-- lock_counters: locks the counters that change when these unclaimed nodes end, before any later
--               lock. It takes the same rows in the same order as release.sql, so that the two
--               cannot deadlock.
-- in:    $1 runs
-- out:   run_id
-- locks: rows of `graph_counter`, in the order of their ids
-- index: edge_run, graph_counter_pkey
--
-- No effect for runs that are neither nodes nor graphs.
with recursive reached as (
    select item.run_id
    from pg_catalog.unnest($1::uuid[]) as item (run_id)
    union
    select edge.dependant_id
    from reached
    cross join lateral (select dependant_id from runledger.edge where edge.run_id = reached.run_id and not on_terminal offset 0) as edge
)
select run_id
from runledger.graph_counter
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
