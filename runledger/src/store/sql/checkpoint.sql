-- checkpoint: records steps of runs that this worker holds; the group commit of the journal.
-- in:    $1 run ids, $2 tokens, $3 keys, $4 ordinals, $5 fingerprints, $6 outputs, $7 errors, $8 seen_len, $9 seen (as JSON arrays),
--        $10 the mark of the body's transaction that this must be in, or null
-- out:   run_id, key, token; every item whose fence holds, also one that was recorded before (a lost acknowledgement)
-- locks: `for key share` on the leases: a reclaim that deletes one waits, and one that has deleted it is seen
-- index: lease_pkey, step_pkey
with item as (
    select *
    from unnest(
        $1::uuid[], $2::uuid[], $3::text[], $4::integer[], $5::bigint[], $6::text[], $7::text[], $8::integer[], $9::text[]
    ) as item (run_id, token, key, ordinal, fingerprint, output, error, seen_len, seen)
),
held as (
    select item.*, lease.claims
    from item
    cross join lateral (
        select *
        from runledger.lease
        where run_id = item.run_id and token = item.token
        offset 0
        for key share
    ) as lease
    where $10::text is null or current_setting('runledger.body', true) = $10
),
recorded as (
    insert into runledger.step (run_id, key, ordinal, fingerprint, output, error, seen_len, seen, claims)
    select
        run_id, key, ordinal, fingerprint, output::json, error::json, seen_len,
        translate(seen, '[]', '{}')::integer[], claims
    from held
    on conflict (run_id, key) do nothing
)
select run_id, key, token
from held
