-- free_leases: returns the runs whose leases no other transaction has locked at this moment.
-- in:    $1 runs
-- out:   run_id
-- locks: `for update` on the leases; waits for none
-- index: lease_pkey
--
-- The caller runs it as its own transaction, so the locks end with the statement.
select run_id
from runledger.lease
where run_id = any($1::uuid[])
order by run_id
for update skip locked
