-- orphans: leases whose worker is dead or unknown, with what the settlement of a crash needs.
-- in:    $1 how many
-- out:   run_id, token, attempt, crashes, parent_id, progressed (a step was recorded under this claim), cancel_requested
-- locks: the leases, for the length of the statement, skipping those that a paused transaction still holds
-- index: worker_pkey, step_pkey
select
    lease.run_id, lease.token, lease.attempt, lease.crashes, run.parent_id,
    exists (select from runledger.step where step.run_id = lease.run_id and step.claims = lease.claims) as progressed,
    exists (select from runledger.cancel where cancel.run_id = lease.run_id) as cancel_requested
from runledger.lease
cross join lateral (select parent_id from runledger.run where run_id = lease.run_id offset 0) as run
where not exists (
    select from runledger.worker
    where worker.worker_id = lease.worker_id and worker.state <> 'dead'
)
limit $1
for update of lease skip locked
