-- content: reads a run that was claimed without its content.
-- in:    $1 run, $2 token
-- out:   run_id, job, tenant, queue, parent_id, is_node, is_linked, input, given, slice, options,
--        priority, ready_at (the instant of the claim), attempt, crashes, claims, claimed_at,
--        cancel_requested, pause_requested, steps, compensating, step_failures, earlier; as in
--        claim.sql. No row if the lease is lost
-- locks: none
-- index: lease_pkey, run_pkey, continuation_pkey, step_pkey, compensation_pkey, cancel_pkey,
--        pause_pkey
--
-- The statement ends with parts/claimed.sql.
with taken as (
    select lease.run_id, run.priority, lease.claimed_at as ready_at, lease.attempt - 1 as attempt, lease.crashes, lease.claims - 1 as claims
    from runledger.lease
    cross join lateral (select priority from runledger.run where run.run_id = lease.run_id offset 0) as run
    where lease.run_id = $1 and lease.token = $2
)
