-- unserved: jobs with queued runs that no living worker knows.
-- in:    none
-- out:   queue, job
-- locks: none
-- index: ready_lane, by skipping from one (queue, job) to the next; worker_living
with recursive lane as (
    (
        select queue, job
        from runledger.ready
        order by queue, job
        limit 1
    )
    union all
    select next.queue, next.job
    from lane
    cross join lateral (
        select ready.queue, ready.job
        from runledger.ready
        where (ready.queue, ready.job) > (lane.queue, lane.job)
        order by ready.queue, ready.job
        limit 1
    ) as next
)
select queue, job
from lane
where not exists (
    select from runledger.worker
    where worker.state <> 'dead' and runledger.is_living(worker) and lane.job = any (worker.jobs) and lane.queue = any (worker.queues)
)
