-- enqueue: enqueues runs, some of which may already exist, in the caller's transaction or in its
--          own.
-- in:    $1 run ids, $2 jobs, $3 tenants, $4 queues, $5 priorities, $6 inputs, $7 options,
--        $8 idempotency keys, $9 delays in microseconds, $10 instants
--        arrays of one length; an array may be empty if all its values are null
-- out:   created, isolation, told; one row: the ids of the new runs, the isolation level of the
--        transaction, the number of workers notified
-- locks: none; an equal key waits for the other transaction
-- index: run_pkey
--
-- A batch with an idempotency key is written only under read committed. A stricter level could give
-- a wrong answer.
-- Notifies one more of the sleeping workers that serve these jobs than there are new runs, because
-- one of the workers may be dead.
with created as (
    insert into runledger.run (run_id, job, tenant, queue, priority, input, options, idempotency_key, start_at)
    select
        run_id, job, coalesce(tenant, ''), queue, priority, input::json, options::json, idempotency_key,
        coalesce(start_at, pg_catalog.statement_timestamp() + coalesce(delay_us, 0)::float8 * interval '1 microsecond')
    from unnest(
        $1::uuid[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::text[], $7::text[], $8::text[], $9::bigint[], $10::timestamptz[]
    ) as item (run_id, job, tenant, queue, priority, input, options, idempotency_key, delay_us, start_at)
    where pg_catalog.cardinality($8::text[]) = 0 or pg_catalog.current_setting('transaction_isolation') in ('read committed', 'read uncommitted')
    on conflict (run_id) do nothing
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
select
    array(select run_id from created) as created,
    pg_catalog.current_setting('transaction_isolation') as isolation,
    (select pg_catalog.count(*) from told) as told
