-- held: lists the leases that the database has for a worker. The worker compares them with the
--       attempts that it knows.
-- in:    $1 worker
-- out:   run_id, token, attempt, crashes
-- locks: none
-- index: lease_worker
--
-- A lost reply to a claim leaves a lease without an attempt. A reclaim leaves an attempt without a
-- lease.
select run_id, token, attempt, crashes
from runledger.lease
where worker_id = $1
