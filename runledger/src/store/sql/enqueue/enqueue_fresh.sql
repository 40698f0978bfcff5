-- enqueue_fresh: enqueues runs without idempotency keys. Their ids were made for this statement, so
--                none can exist yet. A fifth cheaper than enqueue.
-- in:    $1 run ids, $2 jobs, $3 tenants, $4 queues, $5 priorities, $6 inputs, $7 options,
--        $8 delays in microseconds, $9 instants
--        arrays of one length; an array may be empty if all its values are null
-- out:   told; one row: the number of workers notified
-- locks: none
-- index: none
--
-- Notifies one more of the sleeping workers that serve these jobs than there are runs, because one
-- of the workers may be dead.
with created as (
    insert into runledger.run (run_id, job, tenant, queue, priority, input, options, start_at)
    select
        run_id, job, coalesce(tenant, ''), queue, priority, input::json, options::json,
        coalesce(start_at, pg_catalog.statement_timestamp() + coalesce(delay_us, 0)::float8 * interval '1 microsecond')
    from unnest(
        $1::uuid[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::text[], $7::text[], $8::bigint[], $9::timestamptz[]
    ) as item (run_id, job, tenant, queue, priority, input, options, delay_us, start_at)
    returning run_id, queue, job, priority, options, start_at
),
queued as (
    insert into runledger.ready (run_id, resource, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select run_id, runledger.resource_of(options), queue, job, priority, start_at, 'enqueued', 0, 0, 0
    from created
),
told as (
    select runledger.notify('runledger_ready', worker_id::text)
    from runledger.worker
    where state = 'active' and sleeping
        and exists (select from created where created.queue = any (worker.queues) and created.job = any (worker.jobs))
    order by pg_catalog.random()
    limit (select pg_catalog.count(*) + 1 from created)
)
select pg_catalog.count(*) as told
from told
