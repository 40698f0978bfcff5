-- parent: the run that started a run.
-- in:    $1 run
-- out:   parent_id (null where nobody did)
-- locks: none
-- index: run_pkey
select parent_id
from runledger.run
where run_id = $1
