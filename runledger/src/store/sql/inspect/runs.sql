-- runs: lists the latest runs of some or all tenants that match a filter, in pages.
-- in:    $1 tenants (null: all); $2 instant and $3 id of the cursor (null: the latest); $4 the most
--        runs to read; $5 jobs without version, $6 queues, $7 states (null: any); $8 the most runs
--        to return
-- out:   looked_at (runs read), last_created_at, last_run_id, run_id, job, tenant, queue, priority,
--        idempotency_key, parent_id, origin_id, created_at, state, attempt, crashes, cause,
--        ready_at, worker_id, started_at, finished_at, error, compensating, pause_reason,
--        awaited_signals, metadata; the latest first, or one row without a run
-- locks: none
-- index: run_listed, from one tenant to the next; then run_pkey, and the primary keys under
--        runledger.run_state
--
-- The statement reads at most $4 runs before the cursor and then filters them. `last_created_at`
-- and `last_run_id` are the cursor of the last run that it read.
with recursive every_one (tenant) as (
    (select tenant from runledger.run order by tenant collate "C" limit 1)
    union all
    select (select run.tenant from runledger.run where run.tenant collate "C" > every_one.tenant order by run.tenant collate "C" limit 1)
    from every_one
    where every_one.tenant is not null
),
meant as (
    select tenant
    from pg_catalog.unnest($1::text[]) as given (tenant)
    union all
    select tenant
    from every_one
    where $1::text[] is null and tenant is not null
),
looked_at as materialized (
    select latest.run_id, latest.created_at
    from meant
    cross join lateral (
        select run_id, created_at
        from runledger.run
        where tenant collate "C" = meant.tenant
            and (created_at, pg_catalog.uuid_send(run_id))
                < (coalesce($2::timestamptz, 'infinity'), pg_catalog.uuid_send(coalesce($3::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')))
        order by created_at desc, pg_catalog.uuid_send(run_id) desc
        limit $4
    ) as latest
    order by created_at desc, run_id desc
    limit $4
),
wanted as (
    select
        run.run_id, job, tenant, queue, priority, idempotency_key, parent_id, origin_id, run.created_at, state, attempt, crashes, cause, ready_at, worker_id,
        started_at, finished_at, error::text as error, compensating, pause_reason,
        array(
            select name
            from (select wait_signals from runledger.waiting where waiting.run_id = run.run_id offset 0) as waiting
            cross join lateral pg_catalog.unnest(wait_signals) as name
            where name is not null
        ) as awaited_signals,
        (select runledger.option_of(options, 'metadata') from runledger.run as whole where whole.run_id = run.run_id offset 0) as metadata
    from looked_at
    cross join lateral (select * from runledger.run_state where run_state.run_id = looked_at.run_id offset 0) as run
    where ($5::text[] is null or pg_catalog.split_part(job, '@', 1) = any ($5))
        and ($6::text[] is null or queue = any ($6))
        and ($7::text[] is null or state = any ($7))
    order by run.created_at desc, run.run_id desc
    limit $8
),
last as (
    select created_at, run_id
    from looked_at
    order by created_at, run_id
    limit 1
)
select (select pg_catalog.count(*) from looked_at) as looked_at, last.created_at as last_created_at, last.run_id as last_run_id, wanted.*
from (select) as always
left join last on true
left join wanted on true
order by wanted.created_at desc, wanted.run_id desc
