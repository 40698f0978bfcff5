-- take_signal: records steps together with the signals that they consume, for runs that this worker
--              holds: both or neither.
-- in:    $1 run ids, $2 tokens, $3 keys, $4 ordinals, $5 fingerprints, $6 outputs (the payloads,
--        encrypted for the steps), $7 seen_len, $8 seen (JSON arrays), $9 names, $10 numbers,
--        $11 slices
--        $8 may be an empty array if all its values are null
-- out:   held, taken; one row
-- locks: `for key share` on the leases; the signals
-- index: lease_pkey, signal_pkey, step_pkey
--
-- `held` has the positions, from 1, of the items whose fence holds. `taken` has the positions of
-- those that have their signal. That includes a signal that was consumed before and whose
-- acknowledgement was lost.
-- The arrays of runs and numbers keep the planner from reading all of `signal`: the table may have
-- been nearly empty when it made the plan.
with held as (
    select item.*, lease.claims
    from unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::integer[], $8::text[], $9::text[], $10::integer[], $11::integer[])
        with ordinality as item (run_id, token, key, ordinal, fingerprint, output, seen_len, seen, name, number, slice, position)
    cross join lateral (
        select claims
        from runledger.lease
        where run_id = item.run_id and token = item.token
        offset 0
        for key share
    ) as lease
),
taken as (
    update runledger.signal
    set taken_by = held.key, taken_in = held.slice
    from held
    where signal.run_id = any (array(select run_id from held)) and signal.number = any (array(select number from held))
        and signal.run_id = held.run_id and signal.name = held.name and signal.number = held.number
        and (taken_by is null or (taken_by = held.key and taken_in = held.slice))
    returning held.*
),
recorded as (
    insert into runledger.step (run_id, key, ordinal, fingerprint, output, seen_len, seen, claims)
    select run_id, key, ordinal, fingerprint, output::json, seen_len, pg_catalog.translate(seen, '[]', '{}')::bigint[], claims
    from taken
    on conflict (run_id, key) do nothing
)
-- A batch may have an item twice, if its sender was dropped before the answer. The update returns
-- it once.
select
    (select pg_catalog.array_agg(position) from held) as held,
    (select pg_catalog.array_agg(held.position) from held join taken using (run_id, key, name, number, slice)) as taken
