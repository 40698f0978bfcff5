-- workers: lists the living workers, oldest first.
-- in:    none
-- out:   worker_id, name, version, state, jobs, queues, heartbeat_at, n_held (leases)
-- locks: none
-- index: worker_living, lease_worker
select
    worker_id, name, version, state,
    array(select job from pg_catalog.unnest(jobs) as job where job is not null) as jobs,
    array(select queue from pg_catalog.unnest(queues) as queue where queue is not null) as queues,
    heartbeat_at,
    (select pg_catalog.count(*) from runledger.lease where lease.worker_id = worker.worker_id) as n_held
from runledger.worker
where state <> 'dead' and runledger.is_living(worker)
order by started_at, worker_id
