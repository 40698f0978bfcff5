-- gate_decide: ends a gate from outside, if it is open and its graph is live. Stores who decided
--              and why.
-- in:    $1 gate, $2 state, $3 output, $4 error, $5 who, $6 why; for a decision by link: $7 when
--        the link expires, $8 its epoch (both null otherwise)
-- out:   decided, late, revoked, told (notifications); one row
-- locks: its row of `waiting` (deleted). Before it, lock_runs.sql locks the run, then
--        lock_counters.sql the counters that its end changes
-- index: waiting_pkey, run_pkey, graph_counter_pkey, completion_watch_pkey, link_epoch_pkey
--
-- `decided` is false if the gate is not open, or if the gate or its graph has ended. `late`: the
-- link has expired. `revoked`: the links of its epoch were revoked.
with link as (
    select
        coalesce(pg_catalog.statement_timestamp() >= $7::timestamptz, false) as is_late,
        coalesce(
            $8::uuid <> coalesce((select epoch from runledger.link_epoch where run_id = $1), '00000000-0000-0000-0000-000000000000'::uuid),
            false
        ) as is_revoked
),
taken as (
    delete from runledger.waiting
    where run_id = $1
        and state = 'waiting'
        and not (select is_late or is_revoked from link)
        and exists (
            select
            from runledger.run
            where run.run_id = $1
                and run.job = 'runledger.gate'
                and exists (select from runledger.waiting as graph where graph.run_id = run.parent_id offset 0)
        )
        and not exists (select from runledger.graph_counter where graph_counter.run_id = $1 and graph_counter.remaining > 0)
    returning run_id, since
),
ended as (
    insert into runledger.outcome (run_id, state, output, error, attempt, started_at)
    select run_id, $2, $3::text::json, $4::text::json, 1, since
    from taken
),
noted as (
    insert into runledger.gate_decision (run_id, decided_by, reason)
    select run_id, $5, $6
    from taken
),
unwatched as (
    delete from runledger.completion_watch
    where run_id = any (array(select run_id from taken))
    returning run_id
),
told as (
    select runledger.notify('runledger_ended', run_id::text)
    from unwatched
)
select
    exists (select from taken) as decided,
    (select is_late from link) as late,
    (select is_revoked from link) as revoked,
    (select pg_catalog.count(*) from told) as told
