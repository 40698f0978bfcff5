-- lock_lease: waits until no transaction that writes for an attempt is in flight. A commit that was
--             sent may not have arrived yet.
-- in:    $1 run, $2 token
-- out:   run_id; one row if the fence holds
-- locks: the lease, `for update`: every write of an attempt locks it `for key share`, or deletes it
-- index: lease_pkey
select run_id
from runledger.lease
where run_id = $1 and token = $2
for update
