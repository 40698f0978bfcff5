-- watch: requests a notification when a run ends or is blocked.
-- in:    $1 run
-- out:   none
-- locks: none
-- index: run_pkey, completion_watch_pkey
--
-- The caller reads the run once more afterwards, because a settlement may have missed this row.
-- That read sees such a settlement.
insert into runledger.completion_watch (run_id)
select run_id
from runledger.run
where run_id = $1
on conflict (run_id) do nothing
