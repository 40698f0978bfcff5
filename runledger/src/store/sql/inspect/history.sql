-- history: reads the record of a run, live or ended, for export to a file.
-- in:    $1 run
-- out:   job, tenant, graph_id (of a node), state, attempt, input, given (outcomes of a node's
--        dependencies), steps; one row if the run exists
-- locks: none
-- index: run_pkey, step_pkey, continuation_pkey, and the primary keys under runledger.run_state
select
    run_state.job,
    run_state.tenant,
    case when run.node is not null then run.parent_id end as graph_id,
    run_state.state,
    run_state.attempt,
    coalesce(continuation.input, run.input)::text as input,
    -- As in parts/claimed.sql.
    case when run.node is not null and continuation.input is null then runledger.dependency_outcomes(run.run_id) end::text as given,
    (
        select pg_catalog.json_agg(pg_catalog.json_build_array(step.key, step.ordinal, step.fingerprint, step.output, step.error, step.seen_len, step.seen, step.compensation))::text
        from runledger.step
        where step.run_id = $1
    ) as steps
from runledger.run_state
join runledger.run using (run_id)
left join runledger.continuation using (run_id)
where run_id = $1
