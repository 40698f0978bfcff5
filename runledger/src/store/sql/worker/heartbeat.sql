-- heartbeat: records that this worker is alive, and returns what the worker must act on.
-- in:    $1 worker, $2 seconds of silence after which another worker misses its heartbeat,
--        $3 whether to search for work of maintenance
-- out:   alive, draining, cancels (claimed runs to cancel), cancels_left, pauses (claimed runs to
--        pause), pauses_left, silent (workers that miss a heartbeat), incarnation (of the server),
--        timers_due, deadlines_due, overrides, configs, last (this worker's previous heartbeat),
--        now; one row
-- locks: the worker's row
-- index: worker_pkey, worker_living, lease_pkey, lease_worker, cancel_pkey, outcome_pkey,
--        waiting_wake, deadline_due, compensation_pkey, job_override_pkey, config_pkey
--
-- `alive` is false if this worker was declared dead, or if a failover lost its row. The worker then
-- stops everything and registers again.
-- A cancel request for a compensating run comes too late for that run. It is reported again once
-- the run has ended, for the descendants.
-- `cancels_left` and `pauses_left`: there are requests for runs that no worker holds. `timers_due`:
-- a wait has reached its limit. `deadlines_due`: a run has passed its deadline. `overrides` changes
-- with the overrides of jobs, `configs` with their configurations.
-- A search passes the dead rows before the first live one, as long as an old snapshot keeps them.
-- Without $3, these four columns are false.
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
            and not exists (select from runledger.compensation where compensation.run_id = lease.run_id offset 0)
    ) as cancels,
    $3 and exists (
        select from runledger.cancel
        where not exists (select from runledger.lease where lease.run_id = cancel.run_id offset 0)
            and (
                exists (select from runledger.outcome where outcome.run_id = cancel.run_id offset 0)
                or not exists (select from runledger.compensation where compensation.run_id = cancel.run_id offset 0)
            )
    ) as cancels_left,
    array(
        select lease.run_id
        from runledger.lease
        where lease.worker_id = $1
            and exists (select from runledger.pause where pause.run_id = lease.run_id offset 0)
    ) as pauses,
    $3 and exists (
        select from runledger.pause
        where not exists (select from runledger.lease where lease.run_id = pause.run_id offset 0)
    ) as pauses_left,
    array(
        select worker_id
        from runledger.worker
        where state <> 'dead' and worker_id <> $1 and heartbeat_at < pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $2)
    ) as silent,
    runledger.server_incarnation() as incarnation,
    $3 and exists (select from runledger.waiting where wake_at <= pg_catalog.now()) as timers_due,
    $3 and exists (select from runledger.deadline where deadline_at <= pg_catalog.now()) as deadlines_due,
    coalesce((select pg_catalog.hashtextextended(pg_catalog.string_agg(job_override::text, ' ' order by job), 0)::text from runledger.job_override), '') as overrides,
    -- Each update changes `xmin`, so the statement need not read large configurations.
    coalesce((select pg_catalog.hashtextextended(pg_catalog.string_agg(pg_catalog.concat_ws(' ', job, version, xmin), ' ' order by job, version), 0)::text from runledger.config), '') as configs,
    -- The value before the update of this statement.
    (select heartbeat_at from runledger.worker where worker_id = $1) as last,
    pg_catalog.clock_timestamp() as now
