-- pause_ask: stores a request to pause a run, if the run can be paused. The worker that holds the
--            run reads it.
-- in:    $1 run, $2 reason
-- out:   state (before), is_counted, told (notifications); one row if the run exists
-- locks: none; lock_runs.sql has locked the run
-- index: run_pkey, pause_pkey, and the primary keys under runledger.run_state
--
-- Stores nothing if the run has ended, is blocked or is paused, or if `is_counted`. `is_counted`:
-- the run is a graph or a gate, or a node that waits for other nodes.
with before as (
    select
        run_id, state,
        exists (
            select
            from runledger.waiting
            where waiting.run_id = $1 and waiting.state = 'waiting' and wake_at is null
                and pg_catalog.cardinality(wait_any) + pg_catalog.cardinality(wait_all) + pg_catalog.cardinality(wait_signals) = 0
        ) as is_counted
    from runledger.run_state
    where run_id = $1
),
asked as (
    insert into runledger.pause (run_id, reason)
    select run_id, $2
    from before
    where state in ('queued', 'running', 'waiting') and not is_counted
    on conflict (run_id) do nothing
),
told as (
    select runledger.notify('runledger_pause', $1::text)
    from before
    where state = 'running'
)
select state, is_counted, (select pg_catalog.count(*) from told) as told
from before
