-- unserved: lists jobs with queued runs that no living worker serves.
-- in:    none
-- out:   queue, job
-- locks: none
-- index: ready_lane, by skipping from one (resource, queue, job) to the next; worker_living
--
-- Reads the first 10,000 combinations of resource, queue and job. The runs without a resource come
-- first.
with recursive lane as (
    (
        select resource, queue, job
        from runledger.ready
        order by resource, queue, job
        limit 1
    )
    union all
    select next.resource, next.queue, next.job
    from lane
    cross join lateral (
        select ready.resource, ready.queue, ready.job
        from runledger.ready
        where (ready.resource, ready.queue, ready.job) > (lane.resource, lane.queue, lane.job)
        order by ready.resource, ready.queue, ready.job
        limit 1
    ) as next
),
met as (
    select queue, job
    from lane
    limit 10000
)
select distinct queue, job
from met
where not exists (
    select from runledger.worker
    where worker.state <> 'dead' and runledger.is_living(worker) and met.job = any (worker.jobs) and met.queue = any (worker.queues)
)
order by queue, job
