-- wake_met: queues waiting runs for which something has come. Also notifies the clients that wait
--           for the end of one of these runs.
-- in:    $1 runs
-- out:   told (notifications); always one row, because PostgreSQL does not evaluate the
--        notifications for a result without rows
-- locks: their rows of `waiting` and `completion_watch` (deleted); lock_runs.sql has locked the
--        runs, so this statement sees what other transactions brought
-- index: waiting_pkey, outcome_pkey, signal_left, run_pkey, lease_pkey, completion_watch_pkey
with woken as (
    delete from runledger.waiting
    where waiting.run_id = any ($1::uuid[])
        and waiting.state = 'waiting'
        and (
            exists (
                select
                from pg_catalog.unnest(waiting.wait_any) as child (run_id)
                where exists (select from runledger.outcome where outcome.run_id = child.run_id offset 0)
            )
            or (
                pg_catalog.cardinality(waiting.wait_all) > 0
                and not exists (
                    select
                    from pg_catalog.unnest(waiting.wait_all) as child (run_id)
                    where not exists (select from runledger.outcome where outcome.run_id = child.run_id offset 0)
                )
            )
            or exists (
                select
                from pg_catalog.unnest(waiting.wait_signals) as awaited (name)
                cross join lateral (
                    select
                    from runledger.signal
                    where signal.run_id = waiting.run_id and signal.name = awaited.name and signal.taken_by is null
                    limit 1
                ) as untaken
            )
        )
    returning waiting.run_id, waiting.attempt, waiting.crashes, waiting.claims
),
queued as (
    insert into runledger.ready (run_id, resource, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select woken.run_id, runledger.resource_of(run.options), run.queue, run.job, run.priority, pg_catalog.statement_timestamp(), 'woken', woken.attempt, woken.crashes, woken.claims
    from woken
    cross join lateral (select queue, job, priority, options from runledger.run where run_id = woken.run_id offset 0) as run
),
told as (
    select runledger.notify('runledger_ready', '')
    where exists (select from woken)
        and exists (select from runledger.worker where state = 'active' and sleeping)
),
nudged as (
    select runledger.notify('runledger_nudge', parent.run_id::text)
    from pg_catalog.unnest($1::uuid[]) as parent (run_id)
    where exists (select from runledger.lease where lease.run_id = parent.run_id offset 0)
),
unwatched as (
    delete from runledger.completion_watch
    where completion_watch.run_id = any ($1::uuid[])
        and exists (select from runledger.outcome where outcome.run_id = completion_watch.run_id offset 0)
    returning completion_watch.run_id
),
announced as (
    select runledger.notify('runledger_ended', run_id::text)
    from unwatched
)
select
    (select pg_catalog.count(*) from told) + (select pg_catalog.count(*) from nudged) + (select pg_catalog.count(*) from announced) as told
