-- send_signal: stores a signal for a live run, and wakes the run if it waits for a signal of this
--              name.
-- in:    $1 run, $2 name, $3 payload, $4 idempotency key, $5 the limit of unconsumed signals of a
--        name
-- out:   is_deaf, state (null: live and not compensating), isolation (of the transaction), number
--        (null: nothing written), earlier, told (notifications); one row if the run exists
-- locks: its row of `waiting` (deleted); lock_runs.sql has locked the run
-- index: run_pkey, outcome_pkey, compensation_pkey, signal_pkey, signal_key, signal_left,
--        waiting_pkey, lease_pkey
--
-- `is_deaf`: a graph, a gate or a map node has no code that could receive a signal. `state` is the
-- final state, also of a run that still compensates. `earlier` is the payload of an earlier signal
-- with this key, or null.
-- The lock on the run keeps the numbers without gaps. A run that suspends now either sees the
-- signal or is woken. Nothing is written above read committed, because an older snapshot would not
-- show a run that has just suspended.
with target as (
    select
        run.run_id,
        run.job in ('runledger.graph', 'runledger.gate', 'runledger.map') as is_deaf,
        coalesce(
            (select state from runledger.outcome where outcome.run_id = run.run_id),
            (select state from runledger.compensation where compensation.run_id = run.run_id)
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
