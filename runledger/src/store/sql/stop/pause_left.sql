-- pause_left: finds pause requests that no worker is carrying out.
-- in:    $1 how many, $2 runs to leave out
-- out:   run_id
-- locks: none
-- index: lease_pkey
--
-- The run was queued or suspended before its worker saw the request, or it has ended.
select pause.run_id
from runledger.pause
where not exists (select from runledger.lease where lease.run_id = pause.run_id offset 0) and pause.run_id <> all ($2::uuid[])
limit $1
