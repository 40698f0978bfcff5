-- happened: lists the events of a run from its rows, oldest first, up to a limit.
-- in:    $1 run, $2 the most events of each kind, and in all
-- out:   at, what, step_key, attempt, worker_id, detail; a row for each event, and none if the run
--        does not exist
-- locks: none
-- index: the primary keys and step_pkey, signal_pkey, attempt_pkey, pin_pkey from the run on;
--        run_parent, run_origin
select at, what, step_key, attempt, worker_id, detail
from (
    select 0 as rank, created_at as at, 'created' as what, null as step_key, null::integer as attempt, null::bigint as worker_id, null as detail
    from runledger.run
    where run_id = $1
    union all
    (select 1, created_at, 'made_of_it', null, null, null, run_id::text from runledger.run where origin_id = $1 order by created_at limit $2)
    union all
    (select 1, created_at, 'child_created', null, null, null, run_id::text from runledger.run where parent_id = $1 order by created_at limit $2)
    union all
    (
        select 2, started_at, 'attempt_began', null, attempt, worker_id, null
        from runledger.attempt
        where run_id = $1 and step_key = '' and started_at is not null
        order by claims, attempt
        limit $2
    )
    union all
    select 2, claimed_at, 'attempt_began', null, attempt, worker_id, null
    from runledger.lease
    where run_id = $1
    union all
    select 2, started_at, 'attempt_began', null, attempt, worker_id, null
    from runledger.outcome
    where run_id = $1 and started_at is not null and worker_id is not null
    union all
    (select 3, sent_at, 'signal_sent', null, null, null, name from runledger.signal where run_id = $1 order by sent_at limit $2)
    union all
    (
        select 4, recorded_at, case when error is null then 'step_completed' else 'step_failed' end, key, null, null, null
        from runledger.step
        where run_id = $1 and claims > 0
        order by recorded_at, ordinal
        limit $2
    )
    union all
    (
        select 5, ended_at, 'try_failed', step_key, attempt, worker_id, null
        from runledger.attempt
        where run_id = $1 and step_key <> ''
        order by ended_at
        limit $2
    )
    union all
    (
        select 6, ended_at, 'attempt_failed', null, attempt, worker_id, null
        from runledger.attempt
        where run_id = $1 and step_key = ''
        order by claims, attempt
        limit $2
    )
    union all
    select 7, since, 'continued', null, null, null, slice::text
    from runledger.continuation
    where run_id = $1
    union all
    (select 7, pinned_at, 'pinned', null, null, null, to_job from runledger.pin where run_id = $1 order by number limit $2)
    union all
    select 7, requested_at, 'cancel_requested', null, null, null, reason
    from runledger.cancel
    where run_id = $1
    union all
    select 7, requested_at, 'pause_requested', null, null, null, reason
    from runledger.pause
    where run_id = $1
    union all
    select 7, since, 'compensation_started', null, null, null, null
    from runledger.compensation
    where run_id = $1
    union all
    select 8, decided_at, 'decided', null, null, null, decided_by
    from runledger.gate_decision
    where run_id = $1
    union all
    select 9, since, state, null, null, null, reason
    from runledger.waiting
    where run_id = $1
    union all
    select 9, finished_at, state, null, null, worker_id, null
    from runledger.outcome
    where run_id = $1
) as happened
order by at, rank, step_key, attempt
limit $2
