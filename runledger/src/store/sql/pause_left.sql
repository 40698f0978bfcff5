-- pause_left: requests that no worker is carrying out: the run went back to its queue, or to wait, before its worker heard of them, or it has ended.
-- in:    $1 how many, $2 runs that are left out
-- out:   run_id
-- locks: none
-- index: lease_pkey
select pause.run_id
from runledger.pause
where not exists (select from runledger.lease where lease.run_id = pause.run_id offset 0) and pause.run_id <> all ($2::uuid[])
limit $1
