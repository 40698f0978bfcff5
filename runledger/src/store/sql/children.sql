-- children: the runs that a run has started and that have not ended.
-- in:    $1 run
-- out:   run_id
-- locks: none
-- index: run_parent, outcome_pkey
select run.run_id
from runledger.run
where run.parent_id = $1
    and not exists (select from runledger.outcome where outcome.run_id = run.run_id)
order by run.run_id
