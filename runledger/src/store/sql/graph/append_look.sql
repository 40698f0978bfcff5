-- append_look: reads how nodes of a graph ended, and which of their dependencies are live. Runs
--              after append_lock.sql, with its own snapshot.
-- in:    $1 runs: the dependencies of an addition, and its window; $2 the runs that the addition
--        will create
-- out:   run_id, state (null: live; `skipped` if it was skipped), is_new (one of $2)
-- locks: none
-- index: run_pkey, edge_pkey, outcome_pkey
--
-- Returns the runs of $1 and $2 that exist, and the live runs that those of $1 depend on, directly
-- or indirectly.
with recursive needed as (
    select run_id
    from pg_catalog.unnest($1::uuid[]) as item (run_id)
    union
    select edge.run_id
    from needed
    cross join lateral (select run_id from runledger.edge where edge.dependant_id = needed.run_id offset 0) as edge
)
select
    run.run_id, case when runledger.option_of(outcome.error, 'kind') = 'skipped' then 'skipped' else outcome.state end as state, run.run_id = any ($2::uuid[]) as is_new
from (select run_id from needed union select run_id from pg_catalog.unnest($2::uuid[]) as item (run_id)) as looked_at
cross join lateral (select * from runledger.run where run.run_id = looked_at.run_id offset 0) as run
left join lateral (select state, error from runledger.outcome where outcome.run_id = looked_at.run_id offset 0) as outcome on true
where outcome.state is null or run.run_id = any ($1::uuid[]) or run.run_id = any ($2::uuid[])
