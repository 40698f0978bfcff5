-- held: the leases that the database has for a worker. The worker compares them with what it knows: a lost reply to a claim leaves a lease
--       that nobody works on, a reclaim leaves an attempt that nobody owns.
-- in:    $1 worker
-- out:   run_id, token, attempt, crashes
-- locks: none
-- index: lease_worker
select run_id, token, attempt, crashes
from runledger.lease
where worker_id = $1
