-- lanes: lists the lanes of runs that need no permit, each with its first run. The backlog scan
--        uses it to find runs that claims miss.
-- in:    $1 queues, $2 jobs
-- out:   queue, job, priority, first_at, first_id, now, need_permits (some run, of any job, needs a
--        permit)
-- locks: none
-- index: ready_lane, one descent per lane; the dead entries before a lane's first live entry are
--        read once
--
-- A lane is a queue, a job and a priority. A queue and job without runs have one row, with null
-- priority and first run.
select served.queue, served.job, lane.priority, lane.first_at, lane.first_id, pg_catalog.now() as now,
    exists (select from runledger.ready where resource > '') as need_permits
from pg_catalog.unnest($1::text[]) as queues (queue)
cross join pg_catalog.unnest($2::text[]) as jobs (job)
cross join lateral (select queues.queue, jobs.job) as served
left join lateral (
    with recursive lane as (
        (
            select ready.priority, ready.ready_at as first_at, ready.run_id as first_id
            from runledger.ready
            where ready.resource = '' and ready.queue = served.queue and ready.job = served.job
            order by ready.priority, ready.ready_at, ready.run_id
            limit 1
        )
        union all
        select next.priority, next.first_at, next.first_id
        from lane
        cross join lateral (
            select ready.priority, ready.ready_at as first_at, ready.run_id as first_id
            from runledger.ready
            where ready.resource = '' and ready.queue = served.queue and ready.job = served.job and ready.priority > lane.priority
            order by ready.priority, ready.ready_at, ready.run_id
            limit 1
        ) as next
    )
    select priority, first_at, first_id
    from lane
) as lane on true
