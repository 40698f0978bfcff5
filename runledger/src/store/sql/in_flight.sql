-- in_flight: a page of the runs that have not ended, with what is recorded of them, for a look at whether the code still follows it.
-- in:    $1 the last run of the page before, $2 how many
-- out:   run_id, job, tenant, graph_id (where it is a node), input, given (what a node is given by those that it needs), attempt (those spent), steps, undoing
--        (whether its code is not run any more)
-- locks: none
-- index: ready_pkey, lease_pkey and waiting_pkey from $1, run_pkey, step_pkey, undo_pkey, continuation_pkey
with page as (
    (select run_id, attempt from runledger.ready where run_id > $1 order by run_id limit $2)
    union all
    (select run_id, attempt - 1 from runledger.lease where run_id > $1 order by run_id limit $2)
    union all
    (
        select run_id, attempt
        from runledger.waiting
        where run_id > $1
            -- Graphs, gates, and nodes that wait for others have no record, and their arguments are not all there.
            and (state <> 'waiting' or wake_at is not null or pg_catalog.cardinality(wait_any) + pg_catalog.cardinality(wait_all) + pg_catalog.cardinality(wait_signals) > 0)
        order by run_id
        limit $2
    )
    order by run_id
    limit $2
)
select
    run.run_id,
    run.job,
    run.tenant,
    case when run.node is not null then run.parent_id end as graph_id,
    coalesce((select input from runledger.continuation where continuation.run_id = page.run_id), run.input)::text as input,
    case when run.node is not null then runledger.given(run.run_id) end::text as given,
    page.attempt,
    (
        select pg_catalog.json_agg(
            pg_catalog.json_build_array(
                step.key, step.ordinal, step.fingerprint, step.output, step.error, step.seen_len, step.seen,
                -- As claim.sql.
                case when step.claims > 0 or not exists (select from runledger.undo where undo.run_id = page.run_id) then step.undo end
            )
        )::text
        from runledger.step
        where step.run_id = page.run_id
    ) as steps,
    exists (select from runledger.undo where undo.run_id = page.run_id offset 0) as undoing
from page
cross join lateral (select * from runledger.run where run_id = page.run_id offset 0) as run
order by page.run_id
