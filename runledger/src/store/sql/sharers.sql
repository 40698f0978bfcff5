-- sharers: the other runs that have a step on record which this one was given: the run that did it, and those that were made of it, or of one another, with that
--          step.
-- in:    $1 run, $2 key
-- out:   run_id, is_before (whether this run was made of it, by itself or through others), has_ended, is_undone (whether it has taken back what the step did)
-- locks: none
-- index: run_pkey, run_origin, step_pkey, outcome_pkey
with recursive line as (
    select run.run_id, run.origin_id, step.claims = 0 as is_given
    from runledger.run
    cross join lateral (select claims from runledger.step where step.run_id = run.run_id and step.key = $2 offset 0) as step
    where run.run_id = $1
    union all
    select origin.run_id, origin.origin_id, step.claims = 0
    from line
    cross join lateral (select run_id, origin_id from runledger.run where run.run_id = line.origin_id offset 0) as origin
    cross join lateral (select claims from runledger.step where step.run_id = origin.run_id and step.key = $2 offset 0) as step
    where line.is_given
),
sharing as (
    select run_id
    from line
    where is_given or run_id <> $1
    union
    select made.run_id
    from sharing
    cross join lateral (select run_id from runledger.run where run.origin_id = sharing.run_id offset 0) as made
    cross join lateral (
        select from runledger.step where step.run_id = made.run_id and step.key = $2 and step.claims = 0 offset 0
    ) as step
)
select
    run_id,
    exists (select from line where line.run_id = sharing.run_id) as is_before,
    exists (select from runledger.outcome where outcome.run_id = sharing.run_id offset 0) as has_ended,
    exists (select from runledger.step where step.run_id = sharing.run_id and step.key = 'undo[' || $2 || ']' offset 0) as is_undone
from sharing
where run_id <> $1
