-- send_signal: keeps a signal for a run that goes on, and wakes the run where it waits for one of this name. A graph, a gate and a map node have no code that
--              could take one.
-- in:    $1 run, $2 name, $3 payload, $4 idempotency key, $5 how many of a name may be left
-- out:   is_deaf (whether it is a graph, a gate or a map node), state (of a run that has ended, or will once what its steps did is taken back, else null),
--        isolation (of the transaction), number (null where nothing was written), earlier (the payload of an earlier signal with this key, else null), told; one
--        row where there is such a run
-- locks: its row of `waiting` (deleted); the run is locked before, by lock_runs.sql, so that the numbers have no gaps and a run that parks itself now
--        either sees the signal or is woken
-- index: run_pkey, outcome_pkey, undo_pkey, signal_pkey, signal_key, signal_left, waiting_pkey, lease_pkey. Nothing is written above read committed, where a run that
--        has parked itself since the snapshot would not be seen.
with target as (
    select
        run.run_id,
        run.job in ('runledger.graph', 'runledger.gate', 'runledger.map') as is_deaf,
        coalesce(
            (select state from runledger.outcome where outcome.run_id = run.run_id),
            (select state from runledger.undo where undo.run_id = run.run_id)
        ) as state,
        (
            select payload::text
            from runledger.signal
            where signal.run_id = run.run_id and signal.name = $2 and signal.idempotency_key = $4
        ) as earlier,
        coalesce((select pg_catalog.max(number) from runledger.signal where signal.run_id = run.run_id and signal.name = $2), 0) as last,
        (
            select pg_catalog.min(number)
            from runledger.signal
            where signal.run_id = run.run_id and signal.name = $2 and signal.taken_by is null
        ) as first_left
    from runledger.run
    where run.run_id = $1
),
sent as (
    insert into runledger.signal (run_id, name, number, payload, idempotency_key)
    select run_id, $2, last + 1, $3::text::json, $4
    from target
    where pg_catalog.current_setting('transaction_isolation') in ('read committed', 'read uncommitted')
        and not is_deaf
        and state is null
        and earlier is null
        and (first_left is null or last - first_left + 1 < $5)
    returning number
),
woken as (
    delete from runledger.waiting
    where run_id = $1 and state = 'waiting' and $2 = any(wait_signals) and exists (select from sent)
    returning run_id, attempt, crashes, claims
),
queued as (
    insert into runledger.ready (run_id, resource, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select woken.run_id, runledger.resource_of(run.options), run.queue, run.job, run.priority, pg_catalog.statement_timestamp(), 'woken', woken.attempt, woken.crashes, woken.claims
    from woken
    cross join lateral (select queue, job, priority, options from runledger.run where run_id = woken.run_id offset 0) as run
),
told as (
    select runledger.notify('runledger_ready', '')
    where exists (select from woken)
        and exists (select from runledger.worker where state = 'active' and sleeping)
),
nudged as (
    select runledger.notify('runledger_nudge', $1::text)
    where exists (select from sent)
        and exists (select from runledger.lease where run_id = $1)
)
select
    is_deaf,
    state,
    pg_catalog.current_setting('transaction_isolation') as isolation,
    (select number from sent) as number,
    earlier,
    (select pg_catalog.count(*) from told) + (select pg_catalog.count(*) from nudged) as told
from target
