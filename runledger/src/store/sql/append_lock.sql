-- append_lock: holds nodes of a graph where they are, and everything that they need: as long as this transaction goes on, none of them ends. One that is about
--              to end, or to move, is passed over: append_look.sql tells.
-- in:    $1 runs
-- out:   run_id; those that are held
-- locks: `for key share` on rows of `lease`, `ready` and `waiting`, which whoever ends or moves a run deletes; waits for nobody, so that whoever waits for
--        these is never waited for
-- index: edge_pkey, outcome_pkey, lease_pkey, ready_pkey, waiting_pkey
with recursive needed as (
    select run_id
    from pg_catalog.unnest($1::uuid[]) as item (run_id)
    union
    select edge.run_id
    from needed
    cross join lateral (select run_id from runledger.edge where edge.dependant_id = needed.run_id offset 0) as edge
),
going_on as (
    select run_id
    from needed
    where not exists (select from runledger.outcome where outcome.run_id = needed.run_id offset 0)
),
held as (
    select run_id from runledger.lease where run_id = any (array(select run_id from going_on)) for key share skip locked
),
queued as (
    select run_id from runledger.ready where run_id = any (array(select run_id from going_on)) for key share skip locked
),
parked as (
    select run_id from runledger.waiting where run_id = any (array(select run_id from going_on)) for key share skip locked
)
select run_id from held
union all
select run_id from queued
union all
select run_id from parked
