-- wake_sleeping: wakes sleeping workers that serve one of these lanes, for runs that this worker
--                leaves to them.
-- in:    $1 queues, $2 jobs: of the lanes, pair by pair
-- out:   told; one row: the number of workers notified
-- locks: none
-- index: none: workers are few
select pg_catalog.count(*) as told
from (
    select runledger.notify('runledger_ready', worker_id::text)
    from runledger.worker
    where state = 'active' and sleeping
        and exists (
            select from unnest($1::text[], $2::text[]) as lane (queue, job)
            where lane.queue = any (worker.queues) and lane.job = any (worker.jobs)
        )
) as told
