-- append_lock: locks live nodes of a graph and everything that they depend on, so that none of them
--              ends before this transaction does.
-- in:    $1 runs
-- out:   run_id; the locked runs
-- locks: `for key share` on rows of `lease`, `ready` and `waiting`; waits for none
-- index: edge_pkey, outcome_pkey, lease_pkey, ready_pkey, waiting_pkey
--
-- A transaction that ends or moves a run deletes its row of `lease`, `ready` or `waiting`, so it
-- waits for these locks. This statement skips a row that such a transaction has locked, and
-- append_look.sql then finds the run live but unlocked. A transaction that waits for these locks is
-- therefore never waited for.
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
