-- in_flight: reads a page of live runs with their records, to verify that the code still replays
--            them.
-- in:    $1 the last run of the previous page, $2 how many, $3 whether to read the content of
--        input, given and steps
-- out:   run_id, job (null if the run is gone), tenant, queue, graph_id (of a node), input, given
--        (outcomes of a node's dependencies), attempt (attempts spent), steps, compensating, fed
-- locks: none
-- index: ready_pkey, lease_pkey and waiting_pkey from $1, run_pkey, step_pkey, compensation_pkey,
--        continuation_pkey, edge_pkey
--
-- `compensating`: the run compensates, so its code does not run any more. `fed` is set for a graph,
-- for a gate and for a node that waits for others: the parameters that other nodes provide.
with page as (
    (select run_id, attempt, false as is_counted from runledger.ready where run_id > $1 order by run_id limit $2)
    union all
    (select run_id, attempt - 1, false from runledger.lease where run_id > $1 order by run_id limit $2)
    union all
    (
        select
            run_id, attempt,
            state = 'waiting' and wake_at is null
                and pg_catalog.cardinality(wait_any) + pg_catalog.cardinality(wait_all) + pg_catalog.cardinality(wait_signals) = 0
        from runledger.waiting
        where run_id > $1
        order by run_id
        limit $2
    )
    order by run_id
    limit $2
)
select
    page.run_id,
    run.job,
    run.tenant,
    run.queue,
    case when run.node is not null then run.parent_id end as graph_id,
    case when $3 then coalesce(continuation.input, run.input) end::text as input,
    -- As in parts/claimed.sql.
    case when $3 and run.node is not null and not page.is_counted and continuation.input is null then runledger.dependency_outcomes(run.run_id) end::text as given,
    page.attempt,
    (
        select pg_catalog.json_agg(
            pg_catalog.json_build_array(
                step.key, step.ordinal, step.fingerprint, step.output, step.error, step.seen_len, step.seen,
                -- As in parts/claimed.sql.
                case when step.claims > 0 or not exists (select from runledger.compensation where compensation.run_id = page.run_id) then step.compensation end
            )
        )::text
        from runledger.step
        where step.run_id = page.run_id and $3
    ) as steps,
    exists (select from runledger.compensation where compensation.run_id = page.run_id offset 0) as compensating,
    case
        when page.is_counted then array(
            select parameter
            from runledger.edge
            cross join lateral pg_catalog.unnest(edge.parameters) as parameter
            where edge.dependant_id = page.run_id
        )
    end as fed
from page
left join lateral (select * from runledger.run where run_id = page.run_id offset 0) as run on true
left join lateral (select input from runledger.continuation where continuation.run_id = page.run_id offset 0) as continuation on true
order by page.run_id
