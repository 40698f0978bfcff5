-- orphans: reads the leases of some runs whose worker is dead or unknown, with what their
--          settlement needs.
-- in:    $1 runs
-- out:   run_id, token, attempt, crashes, parent_id, is_node, cancel_requested, has_stopped (the
--        worker signed off), trial (the run on trial in the process, or null)
-- locks: the leases, skipping leases that others have locked. A step that is recorded at the same
--        time commits before this statement, or finds no lease
-- index: lease_pkey, worker_pkey, worker_session, run_pkey
select
    lease.run_id, lease.token, lease.attempt, lease.crashes, run.parent_id, run.is_node,
    exists (select from runledger.cancel where cancel.run_id = lease.run_id offset 0)
        and not exists (select from runledger.compensation where compensation.run_id = lease.run_id) as cancel_requested,
    coalesce(holder.died_why = 'stopped', false) as has_stopped,
    coalesce(
        holder.trial,
        (
            select sibling.trial
            from runledger.worker as sibling
            where sibling.session_name = holder.session_name collate "C" and sibling.trial is not null
                and (sibling.state <> 'dead' or sibling.died_at >= holder.heartbeat_at)
            limit 1
        )
    ) as trial
from runledger.lease
cross join lateral (select parent_id, node is not null as is_node from runledger.run where run_id = lease.run_id offset 0) as run
left join lateral (select died_why, trial, session_name, heartbeat_at from runledger.worker where worker.worker_id = lease.worker_id offset 0) as holder on true
where not exists (
    select from runledger.worker
    where worker.worker_id = lease.worker_id and worker.state <> 'dead'
)
    and lease.run_id = any ($1::uuid[])
for update of lease skip locked
