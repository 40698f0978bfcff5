-- start_child: enqueues a child run for a step of a workflow, and records the step: both or
--              neither.
-- in:    $1 parent, $2 token, $3 step key, $4 ordinal, $5 fingerprint, $6 seen_len, $7 seen (a JSON
--        array or null);
--        $8 child, $9 job, $10 queue, $11 priority, $12 input, $13 options, $14 delay in
--        microseconds, $15 instant, $16 the step's output, $17 the most runs above the child,
--        $18 whether it is a graph
-- out:   cancelled, too_deep, told (notifications); one row if the fence holds
-- locks: `for key share` on the parent's lease
-- index: lease_pkey, run_pkey, step_pkey, cancel_pkey, deadline_pkey
--
-- Writes nothing if the parent has a cancel request (`cancelled`), or if too many runs are above
-- the child (`too_deep`). For a graph it records the step only; submit_graph.sql writes the graph
-- in the same transaction.
-- The child's id is derived from parent and key, so a repetition is a no-op.
with held as (
    select
        lease.run_id, lease.claims, parent.tenant, parent.depth,
        exists (select from runledger.cancel where cancel.run_id = lease.run_id offset 0) as cancelled
    from runledger.lease
    cross join lateral (select tenant, coalesce(depth, 0) + 1 as depth from runledger.run where run_id = lease.run_id offset 0) as parent
    where lease.run_id = $1 and lease.token = $2
    for key share of lease
),
going_on as (
    select run_id, claims, tenant, depth
    from held
    where not cancelled and depth <= $17
),
created as (
    insert into runledger.run (run_id, job, tenant, queue, priority, input, options, parent_id, depth, start_at)
    select
        $8, $9, tenant, $10, $11, $12::text::json, $13::text::json, $1, depth,
        coalesce($15::timestamptz, pg_catalog.statement_timestamp() + $14::bigint::float8 * interval '1 microsecond')
    from going_on
    where not $18
    on conflict (run_id) do nothing
    returning run_id, start_at
),
limited as (
    insert into runledger.deadline (run_id, deadline_at)
    select run_id, start_at + ($13::text::json ->> 'deadline_ms'::text)::float8 * interval '1 millisecond'
    from created
    where $13::text::json ->> 'deadline_ms'::text is not null
),
queued as (
    insert into runledger.ready (run_id, resource, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select run_id, runledger.resource_of($13::text::json), $10, $9, $11, start_at, 'enqueued', 0, 0, 0
    from created
),
recorded as (
    insert into runledger.step (run_id, key, ordinal, fingerprint, output, seen_len, seen, claims)
    select run_id, $3, $4, $5, $16::text::json, $6, pg_catalog.translate($7, '[]', '{}')::bigint[], claims
    from going_on
    on conflict (run_id, key) do nothing
),
told as (
    select runledger.notify('runledger_ready', '')
    where exists (select from created)
        and exists (select from runledger.worker where state = 'active' and sleeping)
)
select cancelled, depth > $17 as too_deep, (select pg_catalog.count(*) from told) as told
from held
