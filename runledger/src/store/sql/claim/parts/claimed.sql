select
    run.run_id,
    run.job,
    run.tenant,
    run.queue,
    run.parent_id,
    run.node is not null as is_node,
    run.origin_id is not null as is_linked,
    coalesce(continuation.input, run.input)::text as input,
    -- A continuation holds all arguments of its slice, including the outputs of dependencies.
    case when run.node is not null and continuation.input is null then runledger.dependency_outcomes(run.run_id) end::text as given,
    coalesce(continuation.slice, 0) as slice,
    run.options::text as options,
    taken.priority,
    taken.ready_at,
    least(taken.attempt, 2147483646) + 1 as attempt,
    taken.crashes,
    least(taken.claims, 2147483646) + 1 as claims,
    pg_catalog.now() as claimed_at,
    exists (select from runledger.cancel where cancel.run_id = run.run_id offset 0) as cancel_requested,
    exists (select from runledger.pause where pause.run_id = run.run_id offset 0) as pause_requested,
    case when taken.claims > 0 then (
        select pg_catalog.json_agg(
            pg_catalog.json_build_array(
                step.key, step.ordinal, step.fingerprint, step.output, step.error, step.seen_len, step.seen,
                -- This run did not execute a step that a fork copied, so a compensation without
                -- the run's code leaves it out.
                case when step.claims > 0 or not exists (select from runledger.compensation where compensation.run_id = taken.run_id) then step.compensation end
            )
        )::text
        from runledger.step
        where step.run_id = run.run_id
    ) end as steps,
    case when taken.claims > 0 then (select state from runledger.compensation where compensation.run_id = taken.run_id) end as compensating,
    case when taken.claims > 0 then (
        select pg_catalog.json_object_agg(failed.step_key, pg_catalog.json_build_array(
                failed.attempts,
                case when pg_catalog.isfinite(failed.began_at) then least(extract(epoch from failed.began_at)::float8 * 1000000::float8, 9e18::float8)::bigint else 0 end
            ))::text
        from (
            select attempt.step_key, pg_catalog.count(*) as attempts, pg_catalog.min(attempt.started_at) as began_at
            from runledger.attempt
            where attempt.run_id = run.run_id and attempt.step_key <> '' and attempt.claims > coalesce(continuation.claims, 0)
            group by attempt.step_key
        ) as failed
    ) end as step_failures,
    case when taken.crashes > 1 then (
        -- An array, so that the attempts are read once.
        select array[
            pg_catalog.count(*) filter (where has_crashed and claims > coalesce(last_in_order, 0)),
            least(pg_catalog.max(extract(epoch from ended_at)::float8 - extract(epoch from started_at)::float8) * 1000000::float8, 9e18::float8)::bigint
        ]
        from (
            select
                crash.has_crashed, attempt.claims, attempt.started_at, attempt.ended_at,
                greatest(
                    pg_catalog.max(attempt.claims) filter (where not crash.has_crashed) over (),
                    (select pg_catalog.max(step.claims) from runledger.step where step.run_id = run.run_id),
                    continuation.claims
                ) as last_in_order
            from runledger.attempt
            cross join lateral (
                select exists (
                    select from runledger.worker
                    where worker.worker_id = attempt.worker_id and attempt.ended_at >= worker.died_at and worker.died_why <> 'stopped'
                ) as has_crashed
            ) as crash
            where attempt.run_id = run.run_id and attempt.step_key = ''
                and pg_catalog.isfinite(attempt.started_at) and pg_catalog.isfinite(attempt.ended_at)
        ) as unsuccessful
    ) end as earlier
from taken
-- `offset 0` fixes the join order: one index probe per run, never a scan.
cross join lateral (select * from runledger.run where run_id = taken.run_id offset 0) as run
left join lateral (
    select input, slice, claims from runledger.continuation where taken.claims > 0 and continuation.run_id = taken.run_id offset 0
) as continuation on true
order by taken.priority desc, taken.ready_at, taken.run_id
