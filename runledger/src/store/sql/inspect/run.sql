-- run: reads everything about one run except its input and output.
-- in:    $1 run
-- out:   run_id, job, tenant, queue, priority, idempotency_key, parent_id, origin_id, created_at,
--        state, attempt, crashes, cause, ready_at, worker_id, started_at, finished_at, error,
--        compensating, pause_reason, awaited_signals, metadata; one row if the run exists
-- locks: none
-- index: run_pkey, and the primary keys under runledger.run_state
select
    run_id, job, tenant, queue, priority, idempotency_key, parent_id, origin_id, created_at, state, attempt, crashes, cause, ready_at, worker_id,
    started_at, finished_at, error::text as error, compensating, pause_reason,
    array(
        select name
        from (select wait_signals from runledger.waiting where waiting.run_id = run_state.run_id offset 0) as waiting
        cross join lateral pg_catalog.unnest(wait_signals) as name
        where name is not null
    ) as awaited_signals,
    (select runledger.option_of(options, 'metadata') from runledger.run where run.run_id = run_state.run_id offset 0) as metadata
from runledger.run_state
where run_id = $1
