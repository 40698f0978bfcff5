-- pause_ask: notes that a run is to be paused, if it can be. Whoever holds it sees that.
-- in:    $1 run, $2 reason
-- out:   state (before; one that is ended, blocked or paused is left alone), is_counted (so is one that waits for nodes or as a gate), told; one row where the run exists
-- locks: none; the run is locked before, by lock_runs.sql
-- index: run_pkey, pause_pkey, and the primary keys under runledger.run_state
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
