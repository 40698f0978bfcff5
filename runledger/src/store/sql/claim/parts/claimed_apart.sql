select
    run.run_id,
    run.job,
    run.tenant,
    run.queue,
    run.parent_id,
    run.node is not null as is_node,
    run.origin_id is not null as is_linked,
    null::text as input,
    null::text as given,
    coalesce((select slice from runledger.continuation where continuation.run_id = taken.run_id), 0) as slice,
    null::text as options,
    taken.priority,
    taken.ready_at,
    least(taken.attempt, 2147483646) + 1 as attempt,
    taken.crashes,
    least(taken.claims, 2147483646) + 1 as claims,
    pg_catalog.now() as claimed_at,
    exists (select from runledger.cancel where cancel.run_id = run.run_id offset 0) as cancel_requested,
    exists (select from runledger.pause where pause.run_id = run.run_id offset 0) as pause_requested,
    null::text as steps,
    (select state from runledger.compensation where compensation.run_id = taken.run_id) as compensating,
    null::text as step_failures,
    null::bigint[] as earlier
from taken
cross join lateral (select * from runledger.run where run_id = taken.run_id offset 0) as run
order by taken.priority desc, taken.ready_at, taken.run_id
