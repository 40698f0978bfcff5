-- cancel_left: requests that no worker is carrying out: the run has ended, or went back to its queue before its worker heard of them. A request for a
--        run whose steps are being undone came too late: it counts again once that run has ended.
-- in:    $1 how many, $2 runs that are left out
-- out:   run_id, reason, is_over (whether the run has ended, or is not there)
-- locks: none
-- index: lease_pkey, outcome_pkey, undo_pkey, run_pkey
select cancel.run_id, cancel.reason,
    exists (select from runledger.outcome where outcome.run_id = cancel.run_id offset 0)
        or not exists (select from runledger.run where run.run_id = cancel.run_id offset 0) as is_over
from runledger.cancel
where not exists (select from runledger.lease where lease.run_id = cancel.run_id offset 0)
    and cancel.run_id <> all ($2::uuid[])
    and (
        exists (select from runledger.outcome where outcome.run_id = cancel.run_id offset 0)
        or not exists (select from runledger.undo where undo.run_id = cancel.run_id offset 0)
    )
limit $1
