-- keep_one_place: repairs runs that are in several places: it keeps one row of each. An outcome
--                 wins over a lease, a lease over the queue, the queue over a wait.
-- in:    $1 runs
-- out:   run_id; the runs that were in several places
-- locks: the rows that it deletes
-- index: lease_pkey, ready_pkey, waiting_pkey, outcome_pkey, waiting_wake, deadline_due, run_pkey,
--        edge_run
--
-- The statement adds the runs that the engine finds by its own scans: leases, due waits, due
-- deadlines, and requests to cancel or to pause. It also adds the parents and the dependents of all
-- these runs.
with item as (
    select run_id from pg_catalog.unnest($1::uuid[]) as item (run_id)
    union
    select run_id from runledger.lease
    union
    select run_id from runledger.waiting where wake_at <= pg_catalog.now()
    union
    select run_id from runledger.deadline where deadline_at <= pg_catalog.now()
    union
    select run_id from runledger.cancel
    union
    select run_id from runledger.pause
),
above as (
    select run.parent_id as run_id
    from item
    cross join lateral (select parent_id from runledger.run where run_id = item.run_id offset 0) as run
    where run.parent_id is not null
    union
    select edge.dependant_id
    from item
    cross join lateral (select dependant_id from runledger.edge where edge.run_id = item.run_id offset 0) as edge
),
place as (
    select
        run_id,
        exists (select from runledger.outcome where outcome.run_id = item.run_id offset 0) as has_ended,
        exists (select from runledger.lease where lease.run_id = item.run_id offset 0) as is_leased,
        exists (select from runledger.ready where ready.run_id = item.run_id offset 0) as is_queued
    from (select run_id from item union select run_id from above) as item
),
unparked as (
    delete from runledger.waiting
    where run_id = any (array(select run_id from place where has_ended or is_leased or is_queued))
    returning run_id
),
unqueued as (
    delete from runledger.ready
    where run_id = any (array(select run_id from place where has_ended or is_leased))
    returning run_id
),
unleased as (
    delete from runledger.lease
    where run_id = any (array(select run_id from place where has_ended))
    returning run_id
)
select run_id from unparked
union
select run_id from unqueued
union
select run_id from unleased
