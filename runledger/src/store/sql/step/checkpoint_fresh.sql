-- checkpoint_fresh: records steps of runs that this worker holds, for the first time. A fifth
--                   cheaper than checkpoint. The group commit of the commit queue uses it.
-- in:    $1 run ids, $2 tokens, $3 keys, $4 ordinals, $5 fingerprints, $6 outputs, $7 errors,
--        $8 seen_len, $9 seen (JSON arrays), $10 compensations
--        $7, $9 and $10 may be empty arrays if all their values are null
-- out:   held; one row: the positions, from 1, of the items whose fence holds
-- locks: `for key share` on the leases: a reclaim that deletes a lease waits for this statement,
--        and this statement sees an earlier reclaim
-- index: lease_pkey, step_pkey
--
-- Fails if one of the steps is already recorded. The caller then uses checkpoint.
with held as (
    select item.*, lease.claims
    from unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::text[], $8::integer[], $9::text[], $10::text[])
        with ordinality as item (run_id, token, key, ordinal, fingerprint, output, error, seen_len, seen, compensation, position)
    cross join lateral (
        select claims
        from runledger.lease
        where run_id = item.run_id and token = item.token
        offset 0
        for key share
    ) as lease
),
recorded as (
    insert into runledger.step (run_id, key, ordinal, fingerprint, output, error, seen_len, seen, compensation, claims)
    select
        run_id, key, ordinal, fingerprint, output::json, error::json, seen_len,
        pg_catalog.translate(seen, '[]', '{}')::bigint[], compensation::json, claims
    from held
)
select pg_catalog.array_agg(position) as held
from held
