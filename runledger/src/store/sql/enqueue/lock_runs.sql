-- lock_runs: serializes everything that must be serial for one run. Always the first statement of
--            its transaction.
-- in:    $1 run ids
-- out:   run_id; the ids that exist
-- locks: `for no key update` on the runs, in the order of their ids: the one lock order
-- index: run_pkey
select run_id
from runledger.run
where run_id = any($1::uuid[])
order by run_id
for no key update
