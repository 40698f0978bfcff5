-- enqueue: writes runs and their places in the queue, in the caller's transaction or its own.
-- in:    $1 run ids, $2 jobs, $3 tenants, $4 queues, $5 priorities, $6 inputs, $7 options, $8 idempotency keys, $9 parents,
--        $10 delays in microseconds, $11 instants; arrays of one length
-- out:   created (the ids of the runs that are new), isolation (the transaction's level), told; one row
-- locks: none; a concurrent equal key waits for the other transaction
-- index: run_pkey. A batch with a keyed run is written only under read committed: above it the answer could be wrong.
with item as (
    select *
    from unnest(
        $1::uuid[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::text[], $7::text[], $8::text[], $9::uuid[], $10::bigint[], $11::timestamptz[]
    ) as item (run_id, job, tenant, queue, priority, input, options, idempotency_key, parent_id, delay_us, start_at)
),
created as (
    insert into runledger.run (run_id, job, tenant, queue, priority, input, options, idempotency_key, parent_id, start_at)
    select
        run_id, job, tenant, queue, priority, input::json, options::json, idempotency_key, parent_id,
        coalesce(start_at, statement_timestamp() + delay_us * interval '1 microsecond')
    from item
    where current_setting('transaction_isolation') = 'read committed'
        or not exists (select from item where idempotency_key is not null)
    on conflict (run_id) do nothing
    returning run_id, queue, job, priority, start_at
),
queued as (
    insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select run_id, queue, job, priority, start_at, 'enqueued', 0, 0, 0
    from created
),
told as (
    select pg_notify('runledger_ready', '')
    where exists (select from created)
        and exists (select from runledger.worker where state = 'active' and sleeping)
)
select
    array(select run_id from created) as created,
    current_setting('transaction_isolation') as isolation,
    (select count(*) from told) as told
