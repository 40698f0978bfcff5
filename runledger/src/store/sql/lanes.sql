-- lanes: the lanes (queue, job, priority) that have runs, and the first instant of each. The net under the claim's positions.
-- in:    $1 queues, $2 jobs
-- out:   queue, job, priority, first_at, now
-- locks: none
-- index: ready_lane, one descent a lane; the dead entries before a lane's first living one are passed over
select served.queue, served.job, lane.priority, first.ready_at as first_at, now() as now
from unnest($1::text[]) as queues (queue)
cross join unnest($2::text[]) as jobs (job)
cross join lateral (select queues.queue, jobs.job) as served
cross join lateral (
    with recursive lane as (
        (
            select ready.priority
            from runledger.ready
            where ready.queue = served.queue and ready.job = served.job
            order by ready.priority
            limit 1
        )
        union all
        select (
            select ready.priority
            from runledger.ready
            where ready.queue = served.queue and ready.job = served.job and ready.priority > lane.priority
            order by ready.priority
            limit 1
        )
        from lane
        where lane.priority is not null
    )
    select lane.priority
    from lane
    where lane.priority is not null
) as lane
cross join lateral (
    select ready.ready_at
    from runledger.ready
    where ready.queue = served.queue and ready.job = served.job and ready.priority = lane.priority
    order by ready.ready_at, ready.run_id
    limit 1
) as first
