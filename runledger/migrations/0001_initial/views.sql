-- The state of each run, for people and tools.
create view runledger.run_state as
select
    run.run_id,
    run.job,
    run.tenant,
    run.queue,
    run.priority,
    run.idempotency_key,
    run.parent_id,
    run.origin_id,
    run.graph,
    run.node,
    run.start_at,
    run.created_at,
    case
        when outcome.run_id is not null then outcome.state
        when lease.run_id is not null then 'running'
        when waiting.run_id is not null then waiting.state
        else 'queued'
    end as state,
    coalesce(outcome.attempt, lease.attempt, waiting.attempt, ready.attempt) as attempt,
    coalesce(lease.crashes, waiting.crashes, ready.crashes, 0) as crashes,
    outcome.run_id is null and exists (select from runledger.compensation where compensation.run_id = run.run_id) as compensating,
    ready.cause,
    coalesce(ready.ready_at, waiting.ready_at) as ready_at,
    coalesce(outcome.worker_id, lease.worker_id) as worker_id,
    coalesce(outcome.started_at, lease.claimed_at) as started_at,
    outcome.finished_at,
    outcome.output,
    coalesce(outcome.error, waiting.error) as error,
    waiting.reason as pause_reason
from runledger.run
left join runledger.ready using (run_id)
left join runledger.lease using (run_id)
left join runledger.waiting using (run_id)
left join runledger.outcome using (run_id);
