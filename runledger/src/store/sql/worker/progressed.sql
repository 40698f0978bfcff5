-- progressed: returns the runs that have recorded a step under their present claim.
-- in:    $1 run ids
-- out:   run_id
-- locks: none; the leases are locked before
-- index: lease_pkey, step_pkey
--
-- A separate statement after orphans.sql, because its snapshot must see what was recorded before
-- the leases were locked.
select held.run_id
from pg_catalog.unnest($1::uuid[]) as orphan (run_id)
cross join lateral (select run_id, claims from runledger.lease where lease.run_id = orphan.run_id offset 0) as held
where exists (select from runledger.step where step.run_id = held.run_id and step.claims = held.claims offset 0)
