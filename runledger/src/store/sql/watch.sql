-- watch: asks for a notification when a run ends or is blocked. The caller reads the run once more afterwards: a settlement that did not see
--        this row is seen by that read.
-- in:    $1 run
-- out:   none
-- locks: none
-- index: run_pkey, watch_pkey
insert into runledger.watch (run_id)
select run_id
from runledger.run
where run_id = $1
on conflict (run_id) do nothing
