-- link: creates a run from an existing run: the same request, a link to the origin, and some of its
--       recorded steps. Also creates a run for each given descendant.
-- in:    $1 the new run, $2 all new runs (the new run and its descendants), $3 their origins,
--        $4 their parents (null: none);
--        of steps: $5 the new runs, $6 keys, $7 outputs that replace the recorded ones (null:
--        keep), $8 seen (JSON arrays, or null);
--        $9 whether the new runs continue from the state of their origins;
--        payloads encrypted again for the new runs: $10 inputs, $11 errors of steps,
--        $16 compensations of steps; of signals $12 the new runs, $13 names, $14 numbers,
--        $15 payloads; of progress $17 the new runs, $18 step keys, $19 values;
--        $20 whether $1 copies the progress of its origin;
--        $21 how often the origin of $1 had continued as new when its steps were read
--        $10, $11 and $16 may be empty arrays if all their values are null
-- out:   created (the run is new), told (notifications); one row
-- locks: none; a link with the same id waits for the other transaction
-- index: run_pkey, step_pkey, signal_pkey, progress_pkey, deadline_pkey, continuation_pkey
--
-- Has no effect if the new run exists, or if its origin has continued as new since its steps were
-- read.
-- With $9, a new run gets the latest input and the progress of its origin. It also gets the
-- signals. A signal that a copied step consumed stays consumed, and so does one that was consumed
-- before a continue-as-new.
-- $20 is false for a fork, because a fork executes those steps again.
-- The first claim of a new run counts as its second, so that the claim reads the steps. The copied
-- steps have claim 0.
with item as (
    select
        item.*, origin.job, origin.tenant, origin.queue, origin.priority, origin.options,
        coalesce(
            item.sealed::json,
            (select input from runledger.continuation where $9 and continuation.run_id = item.origin_id),
            origin.input
        ) as input,
        -- The first run is the topmost, and has no parent now.
        nullif(coalesce(origin.depth, 0) - pg_catalog.min(coalesce(origin.depth, 0)) over (), 0) as depth
    from unnest($2::uuid[], $3::uuid[], $4::uuid[], $10::text[]) as item (run_id, origin_id, parent_id, sealed)
    cross join lateral (select * from runledger.run where run_id = item.origin_id offset 0) as origin
),
first as (
    insert into runledger.run (run_id, job, tenant, queue, priority, input, options, parent_id, depth, origin_id, start_at)
    select run_id, job, tenant, queue, priority, input, options, parent_id, depth, origin_id, pg_catalog.statement_timestamp()
    from item
    where run_id = $1
        and $21 = coalesce((select slice from runledger.continuation where continuation.run_id = item.origin_id offset 0), 0)
    on conflict (run_id) do nothing
    returning run_id, origin_id, queue, job, priority, options, start_at
),
below as (
    insert into runledger.run (run_id, job, tenant, queue, priority, input, options, parent_id, depth, origin_id, start_at)
    select run_id, job, tenant, queue, priority, input, options, parent_id, depth, origin_id, pg_catalog.statement_timestamp()
    from item
    where run_id <> $1 and exists (select from first)
    on conflict (run_id) do nothing
    returning run_id, origin_id, queue, job, priority, options, start_at
),
created as (
    select * from first
    union all
    select * from below
),
kept as (
    insert into runledger.step (run_id, key, ordinal, fingerprint, output, error, seen_len, seen, compensation, claims, recorded_at)
    select
        created.run_id, step.key, step.ordinal, step.fingerprint, coalesce(kept.output::json, step.output),
        coalesce(kept.error::json, step.error), step.seen_len,
        pg_catalog.translate(kept.seen, '[]', '{}')::bigint[], coalesce(kept.compensation::json, step.compensation), 0, step.recorded_at
    from unnest($5::uuid[], $6::text[], $7::text[], $8::text[], $11::text[], $16::text[]) as kept (run_id, key, output, seen, error, compensation)
    join created using (run_id)
    cross join lateral (select * from runledger.step where step.run_id = created.origin_id and step.key = kept.key offset 0) as step
),
signalled as (
    insert into runledger.signal (run_id, name, number, payload, idempotency_key, sent_at, taken_by, taken_in)
    select
        created.run_id, sent.name, sent.number, coalesce(resealed.payload::json, sent.payload), sent.idempotency_key, sent.sent_at,
        case when sent.is_of_before or exists (
            select from unnest($5::uuid[], $6::text[]) as kept (run_id, key) where kept.run_id = created.run_id and kept.key = sent.taken_by
        ) then sent.taken_by end,
        case when sent.is_of_before then -1 else 0 end
    from created
    cross join lateral (
        select
            signal.*,
            taken_by is not null
                and taken_in < coalesce((select slice from runledger.continuation where continuation.run_id = created.origin_id), 0) as is_of_before
        from runledger.signal
        where signal.run_id = created.origin_id
        offset 0
    ) as sent
    left join unnest($12::uuid[], $13::text[], $14::integer[], $15::text[]) as resealed (run_id, name, number, payload)
        on resealed.run_id = created.run_id and resealed.name = sent.name and resealed.number = sent.number
    where $9 and (resealed.payload is not null or position('"$sealed"' in sent.payload::text) = 0)
),
progressed as (
    insert into runledger.progress (run_id, step_key, value, noted_at)
    select created.run_id, noted.step_key, coalesce(resealed.value::json, noted.value), noted.noted_at
    from created
    cross join lateral (select step_key, value, noted_at from runledger.progress where progress.run_id = created.origin_id offset 0) as noted
    left join unnest($17::uuid[], $18::text[], $19::text[]) as resealed (run_id, step_key, value)
        on resealed.run_id = created.run_id and resealed.step_key = noted.step_key
    where $9 and ($20 or created.run_id <> $1)
        and (resealed.value is not null or position('"$sealed"' in noted.value::text) = 0)
),
limited as (
    insert into runledger.deadline (run_id, deadline_at)
    select run_id, start_at + (options ->> 'deadline_ms'::text)::float8 * interval '1 millisecond'
    from created
    where options ->> 'deadline_ms'::text is not null
),
queued as (
    insert into runledger.ready (run_id, resource, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select run_id, runledger.resource_of(options), queue, job, priority, start_at, 'enqueued', 0, 0, 1
    from created
),
told as (
    select runledger.notify('runledger_ready', '')
    where exists (select from created)
        and exists (select from runledger.worker where state = 'active' and sleeping)
)
select exists (select from first) as created, (select pg_catalog.count(*) from told) as told
