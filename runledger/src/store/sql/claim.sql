-- claim: moves due runs from `ready` to `lease`, highest priority first, then earliest due, then oldest.
-- in:    $1 worker, $2 token, $3 how many, $4 queues, $5 jobs, $6 priorities, $7 after instants, $8 after ids: a lane and its position each, the
--        lane of the highest priority first
-- out:   run_id, job, tenant, queue, parent_id, is_node, is_linked (whether it was made of another), input, given (what a node is given by those that it needs),
--        slice (how often it has begun anew), options, priority, ready_at, attempt, crashes, claims,
--        claimed_at, cancel_requested, steps, undoing (the state in which it ends once what its steps did is taken back), step_failures
-- locks: the claimed rows of `ready` and no others, skipping those that others hold: the lock stands inside the lane's scan, which is lazy
-- index: ready_lane from the position of each lane: entries before it, living or dead, are never met
with lane as (
    select *
    from unnest($4::text[], $5::text[], $6::smallint[], $7::timestamptz[], $8::uuid[]) as lane (queue, job, priority, after_at, after_id)
    where exists (select from runledger.worker where worker_id = $1 and state = 'active')
),
candidate as (
    select due.spot
    from lane
    cross join lateral (
        select ready.ctid as spot
        from runledger.ready
        where ready.queue = lane.queue
            and ready.job = lane.job
            and ready.priority = lane.priority
            and (ready.ready_at, ready.run_id) > (lane.after_at, lane.after_id)
            and ready.ready_at <= now()
        order by ready.ready_at, ready.run_id
        limit $3
        for update skip locked
    ) as due
    limit $3
),
taken as (
    delete from runledger.ready
    where ctid = any (array(select spot from candidate))
    returning run_id, priority, ready_at, attempt, crashes, claims
),
leased as (
    insert into runledger.lease (run_id, token, worker_id, attempt, crashes, claims, claimed_at)
    select run_id, $2::uuid, $1, attempt + 1, crashes, claims + 1, now()
    from taken
)
select
    run.run_id,
    run.job,
    run.tenant,
    run.queue,
    run.parent_id,
    run.node is not null as is_node,
    run.origin_id is not null as is_linked,
    coalesce(continuation.input, run.input)::text as input,
    case when run.node is not null then runledger.given(run.run_id) end::text as given,
    coalesce(continuation.slice, 0) as slice,
    run.options::text as options,
    taken.priority,
    taken.ready_at,
    taken.attempt + 1 as attempt,
    taken.crashes,
    taken.claims + 1 as claims,
    now() as claimed_at,
    exists (select from runledger.cancel where cancel.run_id = run.run_id) as cancel_requested,
    case when taken.claims > 0 then (
        select json_agg(
            json_build_array(
                step.key, step.ordinal, step.fingerprint, step.output, step.error, step.seen_len, step.seen,
                -- What a step did that the run was given it did not do: where it is undone without its code, that is not taken back.
                case when step.claims > 0 or not exists (select from runledger.undo where undo.run_id = taken.run_id) then step.undo end
            )
        )::text
        from runledger.step
        where step.run_id = run.run_id
    ) end as steps,
    case when taken.claims > 0 then (select state from runledger.undo where undo.run_id = taken.run_id) end as undoing,
    case when taken.claims > 0 then (
        select json_object_agg(failed.step_key, json_build_array(failed.attempts, (extract(epoch from failed.began_at) * 1000000)::bigint))::text
        from (
            select attempt.step_key, count(*) as attempts, min(attempt.started_at) as began_at
            from runledger.attempt
            where attempt.run_id = run.run_id and attempt.step_key <> '' and attempt.claims > coalesce(continuation.claims, 0)
            group by attempt.step_key
        ) as failed
    ) end as step_failures
from taken
-- `offset 0` keeps the planner from turning the join round: it must be one probe a run, never a scan.
cross join lateral (select * from runledger.run where run_id = taken.run_id offset 0) as run
left join lateral (
    select input, slice, claims from runledger.continuation where taken.claims > 0 and continuation.run_id = taken.run_id offset 0
) as continuation on true
order by taken.priority desc, taken.ready_at, taken.run_id
