-- cancel_left: finds cancel requests that no worker is carrying out.
-- in:    $1 how many, $2 runs to leave out
-- out:   run_id, reason, is_over (the run has ended or does not exist)
-- locks: none
-- index: lease_pkey, outcome_pkey, compensation_pkey, run_pkey
--
-- Either the run has ended, or it went back to its queue before its worker saw the request. A
-- request for a compensating run came too late: it counts again once that run has ended.
select cancel.run_id, cancel.reason,
    exists (select from runledger.outcome where outcome.run_id = cancel.run_id offset 0)
        or not exists (select from runledger.run where run.run_id = cancel.run_id offset 0) as is_over
from runledger.cancel
where not exists (select from runledger.lease where lease.run_id = cancel.run_id offset 0)
    and cancel.run_id not in (select left_out from pg_catalog.unnest($2::uuid[]) as left_out)
    and (
        exists (select from runledger.outcome where outcome.run_id = cancel.run_id offset 0)
        or not exists (select from runledger.compensation where compensation.run_id = cancel.run_id offset 0)
    )
limit $1
