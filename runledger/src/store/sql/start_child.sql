-- start_child: enqueues a run on behalf of a workflow's step and records the step, both or neither; neither where the parent is to be cancelled.
-- in:    $1 parent, $2 token, $3 step key, $4 ordinal, $5 fingerprint, $6 seen_len, $7 seen (a JSON array or null),
--        $8 child, $9 job, $10 queue, $11 priority, $12 input, $13 options, $14 delay in microseconds, $15 instant, $16 the step's output
-- out:   cancelled (the parent is to be cancelled, and nothing was written), told; one row where the fence holds
-- locks: `for key share` on the parent's lease
-- index: lease_pkey, run_pkey, step_pkey, cancel_pkey. The child's id is derived from parent and key, so a repetition is a no-op.
with held as (
    select lease.run_id, lease.claims
    from runledger.lease
    where lease.run_id = $1 and lease.token = $2
    for key share of lease
),
going_on as (
    select run_id, claims
    from held
    where not exists (select from runledger.cancel where cancel.run_id = held.run_id offset 0)
),
created as (
    insert into runledger.run (run_id, job, tenant, queue, priority, input, options, parent_id, start_at)
    select
        $8, $9, parent.tenant, $10, $11, $12::text::json, $13::text::json, $1,
        coalesce($15::timestamptz, statement_timestamp() + $14::bigint * interval '1 microsecond')
    from going_on
    cross join lateral (select tenant from runledger.run where run_id = going_on.run_id offset 0) as parent
    on conflict (run_id) do nothing
    returning run_id, start_at
),
queued as (
    insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select run_id, $10, $9, $11, start_at, 'enqueued', 0, 0, 0
    from created
),
recorded as (
    insert into runledger.step (run_id, key, ordinal, fingerprint, output, seen_len, seen, claims)
    select run_id, $3, $4, $5, $16::text::json, $6, translate($7, '[]', '{}')::bigint[], claims
    from going_on
    on conflict (run_id, key) do nothing
),
told as (
    select runledger.notify('runledger_ready', '')
    where exists (select from created)
        and exists (select from runledger.worker where state = 'active' and sleeping)
)
select not exists (select from going_on) as cancelled, (select count(*) from told) as told
from held
