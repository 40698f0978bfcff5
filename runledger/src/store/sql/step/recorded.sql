-- recorded: reads a step, if it is recorded, and whether the attempt still holds its lease. For a
--           transaction whose acknowledgement was lost.
-- in:    $1 run, $2 token, $3 key
-- out:   held, output, error; one row
-- locks: none; lock_lease.sql has locked the lease
-- index: lease_pkey, step_pkey
select
    exists (select from runledger.lease where run_id = $1 and token = $2) as held,
    (select output::text from runledger.step where run_id = $1 and key = $3) as output,
    (select error::text from runledger.step where run_id = $1 and key = $3) as error
