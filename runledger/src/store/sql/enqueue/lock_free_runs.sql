-- lock_free_runs: locks runs as lock_runs.sql does, but skips the runs that another transaction has
--                 locked.
-- in:    $1 run ids
-- out:   run_id; the runs that it has locked
-- locks: `for no key update` on the runs; waits for none
-- index: run_pkey
select run_id
from runledger.run
where run_id = any($1::uuid[])
order by run_id
for no key update skip locked
