-- free_leases: the runs whose leases no other transaction keeps locked just now. The locks of this statement end with it.
-- in:    $1 runs
-- out:   run_id
-- locks: `for update` on the leases; waits for none
-- index: lease_pkey
select run_id
from runledger.lease
where run_id = any($1::uuid[])
order by run_id
for update skip locked
