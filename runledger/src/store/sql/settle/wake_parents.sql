-- wake_parents: queues parents that wait for one of these ended children, or for the last of
--               several.
-- in:    $1 ids of runs that ended in this transaction
-- out:   told (notifications); always one row, because PostgreSQL does not evaluate the
--        notifications for a result without rows
-- locks: the parents' rows of `waiting` (deleted); lock_runs.sql has locked the parents, so of two
--        last children one sees the other
-- index: run_pkey, waiting_pkey, outcome_pkey, lease_pkey
with parent as (
    select distinct run.parent_id as run_id
    from pg_catalog.unnest($1::uuid[]) as ended (run_id)
    cross join lateral (select parent_id from runledger.run where run.run_id = ended.run_id offset 0) as run
    where run.parent_id is not null
),
woken as (
    delete from runledger.waiting
    where waiting.run_id = any (array(select run_id from parent))
        and waiting.state = 'waiting'
        and (
            waiting.wait_any operator(pg_catalog.&&) $1::uuid[]
            or (
                waiting.wait_all operator(pg_catalog.&&) $1::uuid[]
                and not exists (
                    select
                    from pg_catalog.unnest(waiting.wait_all) as child (run_id)
                    where not exists (select from runledger.outcome where outcome.run_id = child.run_id offset 0)
                )
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
    from parent
    where exists (select from runledger.lease where lease.run_id = parent.run_id offset 0)
)
select (select pg_catalog.count(*) from told) + (select pg_catalog.count(*) from nudged) as told
