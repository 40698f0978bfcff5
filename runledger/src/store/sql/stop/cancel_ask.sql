-- cancel_ask: stores a request to cancel a run, unless the run has ended or is compensating. The
--             worker that holds or claims the run reads the request.
-- in:    $1 run, $2 reason
-- out:   state (null: live), reason (of the first request), in_graph (a graph or a node), told
--        (notifications); one row if the run exists
-- locks: none; lock_runs.sql has locked the run
-- index: run_pkey, outcome_pkey, cancel_pkey, compensation_pkey
with asked as (
    insert into runledger.cancel (run_id, reason)
    select run.run_id, $2
    from runledger.run
    where run.run_id = $1
        and not exists (select from runledger.outcome where outcome.run_id = run.run_id)
        and not exists (select from runledger.compensation where compensation.run_id = run.run_id)
    on conflict (run_id) do nothing
),
told as (
    select runledger.notify('runledger_cancel', $1::text)
    where exists (select from runledger.lease where run_id = $1)
        and not exists (select from runledger.compensation where run_id = $1)
)
select
    outcome.state,
    coalesce((select cancel.reason from runledger.cancel where cancel.run_id = $1), $2) as reason,
    run.graph is not null or run.node is not null as in_graph,
    (select pg_catalog.count(*) from told) as told
from runledger.run
left join runledger.outcome using (run_id)
where run.run_id = $1
