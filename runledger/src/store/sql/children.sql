-- children: the runs that a run has started and that have not ended.
-- in:    $1 run
-- out:   run_id
-- locks: none
-- index: run_parent, outcome_pkey
select child.run_id
from (select run_id from runledger.run where parent_id = $1 offset 0) as child
where not exists (select from runledger.outcome where outcome.run_id = child.run_id offset 0)
order by child.run_id
