-- metrics: counts the live runs of each tenant and job by state, and recent runs by outcome.
-- in:    $1 tenants (null: all); $2 the age limit of recent runs in microseconds; $3 the most runs
--        of each kind
-- out:   tenant, job (without its version), queued, scheduled, running, waiting, blocked, paused,
--        oldest_us, completed, failed, cancelled, retried, waits_us, works_us, is_partial; a row
--        for each tenant and job that has runs
-- locks: none
-- index: ready_pkey, lease_pkey and waiting_pkey from their start, run_pkey, run_listed,
--        outcome_pkey
--
-- The statement reads at most $3 runs of each kind: queued, claimed, waiting, and recently created
-- of each tenant. `is_partial`: a kind reached this limit.
-- `oldest_us`: how long the first queued run has been due. `retried`: ended after more than one
-- attempt.
-- `waits_us` and `works_us` each hold the median and the 95th percentile, over runs that a worker
-- ended and decided gates. `waits_us` is the time from `start_at` to the claim that ended the run,
-- or to the opening of the gate. `works_us` is the time from there to the end.
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
live as (
    (select run_id, case when ready_at <= pg_catalog.now() then 'queued' else 'scheduled' end as state, ready_at as since from runledger.ready order by run_id limit $3)
    union all
    (select run_id, 'running', claimed_at from runledger.lease order by run_id limit $3)
    union all
    (select run_id, state, since from runledger.waiting order by run_id limit $3)
),
recent as (
    select latest.run_id, meant.tenant, latest.job, latest.start_at
    from meant
    cross join lateral (
        select run_id, job, start_at
        from runledger.run
        where tenant collate "C" = meant.tenant
            and created_at > pg_catalog.now() - $2::bigint::float8 * interval '1 microsecond'
        order by created_at desc, pg_catalog.uuid_send(run_id) desc
        limit $3
    ) as latest
),
counted as (
    select run.tenant, run.job, live.state, live.since, null::integer as attempt, null::interval as wait, null::interval as work
    from live
    cross join lateral (select tenant, job from runledger.run where run.run_id = live.run_id offset 0) as run
    where $1::text[] is null or run.tenant = any ($1)
    union all
    select
        recent.tenant, recent.job, ended.state, null, ended.attempt,
        -- An infinite instant has no duration. The longest duration in microseconds must fit a
        -- bigint.
        case
            when pg_catalog.isfinite(ended.started_at) and pg_catalog.isfinite(recent.start_at)
                then least(greatest(ended.started_at - recent.start_at, interval '0'), interval '285000 years')
        end,
        case
            when pg_catalog.isfinite(ended.started_at) and pg_catalog.isfinite(ended.finished_at)
                then least(greatest(ended.finished_at - ended.started_at, interval '0'), interval '285000 years')
        end
    from recent
    cross join lateral (
        select state, attempt, started_at, finished_at from runledger.outcome where outcome.run_id = recent.run_id offset 0
    ) as ended
),
is_more as (
    select
        exists (select from live group by state in ('queued', 'scheduled'), state = 'running' having pg_catalog.count(*) >= $3)
        or exists (select from recent group by tenant having pg_catalog.count(*) >= $3) as is_partial
)
select
    tenant,
    pg_catalog.split_part(job, '@', 1) as job,
    pg_catalog.count(*) filter (where state = 'queued') as queued,
    pg_catalog.count(*) filter (where state = 'scheduled') as scheduled,
    pg_catalog.count(*) filter (where state = 'running') as running,
    pg_catalog.count(*) filter (where state = 'waiting') as waiting,
    pg_catalog.count(*) filter (where state = 'blocked') as blocked,
    pg_catalog.count(*) filter (where state = 'paused') as paused,
    (extract(epoch from pg_catalog.now() - pg_catalog.min(since) filter (where state = 'queued' and pg_catalog.isfinite(since)))::numeric * 1000000::numeric)::bigint as oldest_us,
    pg_catalog.count(*) filter (where state = 'completed') as completed,
    pg_catalog.count(*) filter (where state = 'failed') as failed,
    pg_catalog.count(*) filter (where state = 'cancelled') as cancelled,
    pg_catalog.count(*) filter (where attempt > 1) as retried,
    (pg_catalog.percentile_cont(array[0.5, 0.95]) within group (order by extract(epoch from wait)::float8 * 1000000::float8))::bigint[] as waits_us,
    (pg_catalog.percentile_cont(array[0.5, 0.95]) within group (order by extract(epoch from work)::float8 * 1000000::float8))::bigint[] as works_us,
    (select is_partial from is_more) as is_partial
from counted
group by tenant collate "C", tenant, pg_catalog.split_part(job, '@', 1) collate "C", pg_catalog.split_part(job, '@', 1)
order by tenant collate "C", pg_catalog.split_part(job, '@', 1) collate "C"
