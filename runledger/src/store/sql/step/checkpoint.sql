-- checkpoint: records steps of runs that this worker holds. Some of the steps may already be
--             recorded.
-- in:    $1 run ids, $2 tokens, $3 keys, $4 ordinals, $5 fingerprints, $6 outputs, $7 errors,
--        $8 seen_len, $9 seen (JSON arrays), $10 compensations, $11 the marker of the body's
--        transaction, or null
--        $7, $9 and $10 may be empty arrays if all their values are null
-- out:   held, restless (the idle limit, if $11 is set); one row
-- locks: `for key share` on the leases: a reclaim that deletes a lease waits for this statement,
--        and this statement sees an earlier reclaim
-- index: lease_pkey, step_pkey
--
-- `held` has the positions, from 1, of the items whose fence holds. That includes a step that was
-- recorded before and whose acknowledgement was lost.
-- With $11, no fence holds unless the transaction carries this marker and the session's encoding is
-- UTF8, which the driver uses. After this statement only the commit is missing, so the server ends
-- the transaction if the commit does not arrive within 10 s. Otherwise a commit that is lost on the
-- network would keep the lease locked.
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
    where $11::text is null
        or pg_catalog.current_setting('runledger.body', true) = $11 and pg_catalog.pg_client_encoding() = 'UTF8'
),
recorded as (
    insert into runledger.step (run_id, key, ordinal, fingerprint, output, error, seen_len, seen, compensation, claims)
    select
        run_id, key, ordinal, fingerprint, output::json, error::json, seen_len,
        pg_catalog.translate(seen, '[]', '{}')::bigint[], compensation::json, claims
    from held
    on conflict (run_id, key) do nothing
)
select
    pg_catalog.array_agg(position) as held,
    case when $11::text is not null then pg_catalog.set_config('idle_in_transaction_session_timeout', '10s', true) end as restless
from held
