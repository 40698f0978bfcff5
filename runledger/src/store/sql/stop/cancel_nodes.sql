-- cancel_nodes: cancels the nodes among $1 whose graph has ended, also nodes that wait for other
--               nodes. Leaves out a node that a worker has claimed, or that has a recorded step, a
--               child or a started compensation.
-- in:    $1 nodes, $2 error
-- out:   taken (run ids), told (notifications); one row
-- locks: their rows of `ready` and `waiting` (deleted). Before it, lock_runs.sql locks the runs,
--        then lock_counters.sql the counters of their dependents
-- index: run_pkey, run_parent, outcome_pkey, compensation_pkey, step_pkey, ready_pkey,
--        waiting_pkey, cancel_pkey, completion_watch_pkey
with free as (
    select item.run_id
    from pg_catalog.unnest($1::uuid[]) as item (run_id)
    cross join lateral (select parent_id from runledger.run where run.run_id = item.run_id and run.node is not null offset 0) as run
    where exists (select from runledger.outcome where outcome.run_id = run.parent_id offset 0)
        and not exists (select from runledger.compensation where compensation.run_id = item.run_id offset 0)
        and not exists (select from runledger.step where step.run_id = item.run_id offset 0)
        and not exists (select from runledger.run as child where child.parent_id = item.run_id offset 0)
),
unqueued as (
    delete from runledger.ready
    where run_id = any (array(select run_id from free))
    returning run_id, attempt
),
unparked as (
    delete from runledger.waiting
    where run_id = any (array(select run_id from free))
    returning run_id, attempt
),
taken as (
    select run_id, attempt from unqueued
    union all
    select run_id, attempt from unparked
),
ended as (
    insert into runledger.outcome (run_id, state, error, attempt)
    select run_id, 'cancelled', $2::text::json, attempt
    from taken
),
uncancelled as (
    delete from runledger.cancel
    where run_id = any (array(select run_id from taken))
),
unwatched as (
    delete from runledger.completion_watch
    where run_id = any (array(select run_id from taken))
    returning run_id
),
told as (
    select runledger.notify('runledger_ended', run_id::text)
    from unwatched
)
select array(select run_id from taken) as taken, (select pg_catalog.count(*) from told) as told
