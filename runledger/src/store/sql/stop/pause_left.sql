-- pause_left: finds pause requests that no worker is carrying out.
-- in:    $1 how many, $2 runs to leave out
-- out:   run_id
-- locks: none
-- index: lease_pkey
--
-- The run was queued or suspended before its worker saw the request, or it has ended.
select pause.run_id
from runledger.pause
where not exists (select from runledger.lease where lease.run_id = pause.run_id offset 0) and pause.run_id not in (select left_out from pg_catalog.unnest($2::uuid[]) as left_out)
limit $1
