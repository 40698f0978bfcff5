-- heartbeat: says that this worker lives, and asks what concerns it. A request to cancel a run whose steps are being undone comes too late for
--        that run. It is reported again once the run has ended, for the runs below it.
-- in:    $1 worker, $2 seconds of silence after which a heartbeat of another worker is missing
-- out:   alive (false: declared dead, or lost in a failover; stop everything and register anew), draining, cancels (the ids of held runs to cancel),
--        cancels_left (whether there are requests for runs that no worker holds), pauses (the ids of held runs to pause), pauses_left (the same of these),
--        silent (the workers that miss a heartbeat), incarnation (of the server),
--        timers_due (whether a wait has come to its limit), deadlines_due (whether the deadline of a run is over), tunings (changes when what operators say
--        of jobs does), configs (changes when what they configure does), last (this worker's heartbeat before), now; one row
-- locks: the worker's row
-- index: worker_pkey, worker_living, lease_pkey, lease_worker, cancel_pkey, outcome_pkey, waiting_wake, deadline_due, undo_pkey, tuning_pkey, config_pkey.
with me as (
    update runledger.worker
    set heartbeat_at = pg_catalog.clock_timestamp()
    where worker_id = $1 and state <> 'dead'
    returning drain_requested
)
select
    exists (select from me) as alive,
    coalesce((select drain_requested from me), false) as draining,
    array(
        select lease.run_id
        from runledger.lease
        where lease.worker_id = $1
            and exists (select from runledger.cancel where cancel.run_id = lease.run_id offset 0)
            and not exists (select from runledger.undo where undo.run_id = lease.run_id offset 0)
    ) as cancels,
    exists (
        select from runledger.cancel
        where not exists (select from runledger.lease where lease.run_id = cancel.run_id offset 0)
            and (
                exists (select from runledger.outcome where outcome.run_id = cancel.run_id offset 0)
                or not exists (select from runledger.undo where undo.run_id = cancel.run_id offset 0)
            )
    ) as cancels_left,
    array(
        select pause.run_id
        from runledger.pause
        cross join lateral (select worker_id from runledger.lease where run_id = pause.run_id offset 0) as lease
        where lease.worker_id = $1
    ) as pauses,
    exists (
        select from runledger.pause
        where not exists (select from runledger.lease where lease.run_id = pause.run_id offset 0)
    ) as pauses_left,
    array(
        select worker_id
        from runledger.worker
        where state <> 'dead' and worker_id <> $1 and heartbeat_at < pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $2)
    ) as silent,
    runledger.server_incarnation() as incarnation,
    exists (select from runledger.waiting where wake_at <= pg_catalog.now()) as timers_due,
    exists (select from runledger.deadline where deadline_at <= pg_catalog.now()) as deadlines_due,
    coalesce((select pg_catalog.hashtextextended(pg_catalog.string_agg(tuning::text, ' ' order by job), 0)::text from runledger.tuning), '') as tunings,
    -- Whoever changes a row gives it another xmin, and nothing has to read what may be large.
    coalesce((select pg_catalog.hashtextextended(pg_catalog.string_agg(pg_catalog.concat_ws(' ', job, version, xmin), ' ' order by job, version), 0)::text from runledger.config), '') as configs,
    -- As the statement found it.
    (select heartbeat_at from runledger.worker where worker_id = $1) as last,
    pg_catalog.clock_timestamp() as now
