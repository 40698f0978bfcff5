-- cancel_left: requests that no worker is carrying out: the run has ended, or went back to its queue before its worker heard of them.
-- in:    $1 how many, $2 runs that are left out
-- out:   run_id, reason, ended
-- locks: none
-- index: lease_pkey, outcome_pkey
select cancel.run_id, cancel.reason, exists (select from runledger.outcome where outcome.run_id = cancel.run_id offset 0) as ended
from runledger.cancel
where not exists (select from runledger.lease where lease.run_id = cancel.run_id offset 0) and cancel.run_id <> all ($2::uuid[])
limit $1
