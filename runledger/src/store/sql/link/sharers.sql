-- sharers: lists the other runs that have a recorded step which this run was given: the run that
--          executed it, and the runs that were created with a copy.
-- in:    $1 run, $2 key
-- out:   run_id, is_before (a direct or indirect origin of this run), has_ended, is_compensated
--        (has compensated the step), has_forgotten
-- locks: none
-- index: run_pkey, run_origin, step_pkey, outcome_pkey, continuation_pkey
--
-- A run that has continued as new has lost the record of the step. A later step under the same key
-- has another time of recording, so it does not count. `has_forgotten`: the run had the step, or
-- may have had it, and lost the record.
with recursive line as (
    select run.run_id, run.origin_id, step.recorded_at, true as is_given, false as has_forgotten
    from runledger.run
    cross join lateral (
        select recorded_at from runledger.step where step.run_id = run.run_id and step.key = $2 and step.claims = 0 offset 0
    ) as step
    where run.run_id = $1
    union all
    select
        origin.run_id, origin.origin_id, line.recorded_at, coalesce(step.claims = 0, origin.start_at > line.recorded_at), step.claims is null
    from line
    cross join lateral (select run_id, origin_id, start_at from runledger.run where run.run_id = line.origin_id offset 0) as origin
    cross join lateral (
        select (
            select claims from runledger.step where step.run_id = origin.run_id and step.key = $2 and step.recorded_at = line.recorded_at
        ) as claims
        offset 0
    ) as step
    where line.is_given
        and (
            step.claims is not null
            or exists (
                select from runledger.continuation where continuation.run_id = origin.run_id and continuation.since >= line.recorded_at offset 0
            )
        )
),
sharing as (
    select run_id, recorded_at, has_forgotten
    from line
    union
    select made.run_id, sharing.recorded_at, step.claims is null
    from sharing
    cross join lateral (
        select run_id, start_at from runledger.run where run.origin_id = sharing.run_id offset 0
    ) as made
    cross join lateral (
        select (
            select claims from runledger.step where step.run_id = made.run_id and step.key = $2 and step.recorded_at = sharing.recorded_at
        ) as claims
        offset 0
    ) as step
    where step.claims = 0
        or (
            step.claims is null
            and made.start_at > sharing.recorded_at
            and exists (
                select from runledger.continuation where continuation.run_id = made.run_id and continuation.since >= sharing.recorded_at offset 0
            )
        )
)
select
    run_id,
    exists (select from line where line.run_id = sharing.run_id) as is_before,
    exists (select from runledger.outcome where outcome.run_id = sharing.run_id offset 0) as has_ended,
    not has_forgotten
        and exists (select from runledger.step where step.run_id = sharing.run_id and step.key = 'compensate[' || $2 || ']' offset 0) as is_compensated,
    has_forgotten
from sharing
where run_id <> $1
