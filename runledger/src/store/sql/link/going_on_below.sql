-- going_on_below: finds a live descendant of a run.
-- in:    $1 run
-- out:   run_id; one row if there is one
-- locks: none
-- index: run_parent, outcome_pkey
--
-- Follows runs that have ended too, because their children may be live.
with recursive below as (
    select run_id
    from runledger.run
    where parent_id = $1
    union
    select child.run_id
    from below
    cross join lateral (select run_id from runledger.run where parent_id = below.run_id offset 0) as child
)
select run_id
from below
where not exists (select from runledger.outcome where outcome.run_id = below.run_id offset 0)
limit 1
