-- suspend: suspends a run until something that it waits for comes. Queues it at once if that has
--          already come.
-- in:    $1 run, $2 token; $3 children of which one must end, $4 children that must all end,
--        $5 names of signals of which one must come, $6 the latest instant to wake at (null: none);
--        $7 attempts spent, $8 crashes, $9 whether the run is locked
-- out:   parked (false: queued at once); one row if the fence holds
-- locks: the lease (deleted); lock_free_runs.sql has tried to lock the run
-- index: lease_pkey, outcome_pkey, run_pkey, signal_left
--
-- The lock on the run ensures that an event is either seen here or wakes the run. If another
-- transaction keeps the run locked, wake_met.sql wakes it afterwards. If the worker dies before
-- that, the run wakes after 30 s.
-- The run is also queued at once if a child does not exist: a failover lost the start of the child,
-- and the replay repeats it. A child of another run, taken over from the run's origin, does not
-- wake this run when it ends. The run then polls every 5 s.
with held as (
    delete from runledger.lease
    where run_id = $1 and token = $2
    returning run_id, claims
),
ended as (
    select
        exists (select from runledger.outcome where run_id = any($3::uuid[]))
        or (
            pg_catalog.cardinality($4::uuid[]) > 0
            and not exists (
                select
                from pg_catalog.unnest($4::uuid[]) as child (run_id)
                where not exists (select from runledger.outcome where outcome.run_id = child.run_id offset 0)
            )
        )
        or pg_catalog.count(*) < pg_catalog.cardinality($3::uuid[] operator(pg_catalog.||) $4::uuid[])
        or exists (
            select
            from pg_catalog.unnest($5::text[]) as awaited (name)
            cross join lateral (
                select
                from runledger.signal
                where signal.run_id = $1 and signal.name = awaited.name and signal.taken_by is null
                limit 1
            ) as untaken
        ) as already,
        case when pg_catalog.count(*) filter (where there.parent_id is distinct from $1) > 0 then pg_catalog.statement_timestamp() + interval '5 seconds' end as look_at
    from pg_catalog.unnest($3::uuid[] operator(pg_catalog.||) $4::uuid[]) as child (run_id)
    cross join lateral (select parent_id from runledger.run where run.run_id = child.run_id offset 0) as there
),
parked as (
    insert into runledger.waiting (run_id, state, wait_any, wait_all, wait_signals, wake_at, attempt, crashes, claims, since)
    select held.run_id, 'waiting', $3::uuid[], $4::uuid[], $5::text[], least($6::timestamptz, ended.look_at, case when not $9 then pg_catalog.statement_timestamp() + interval '30 seconds' end), $7, $8, held.claims, pg_catalog.statement_timestamp()
    from held, ended
    where not ended.already
    returning run_id
),
queued as (
    insert into runledger.ready (run_id, resource, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select held.run_id, runledger.resource_of(run.options), run.queue, run.job, run.priority, pg_catalog.statement_timestamp(), 'woken', $7, $8, held.claims
    from held
    cross join ended
    cross join lateral (select queue, job, priority, options from runledger.run where run_id = held.run_id offset 0) as run
    where ended.already
)
select exists (select from parked) as parked
from held
