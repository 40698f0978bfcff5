-- checkpoint: records steps of runs that this worker holds, some of which may be recorded already.
-- in:    $1 run ids, $2 tokens, $3 keys, $4 ordinals, $5 fingerprints, $6 outputs, $7 errors, $8 seen_len, $9 seen (as JSON arrays);
--        errors, seen and undos may be empty where all are null; $10 undos; $11 the mark that the body's transaction must have, or null;
--        with it, the session's encoding must be that of the driver
-- out:   held, restless; one row: the positions from 1 of the items whose fence holds, also of one that was recorded before (a lost acknowledgement);
--        only the commit of a body's transaction is left, so the server ends the transaction if the commit does not arrive within 10 s. Otherwise
--        a transaction whose commit is lost on the network would keep its lease locked
-- locks: `for key share` on the leases: a reclaim that deletes one waits, and one that has deleted it is seen
-- index: lease_pkey, step_pkey
with held as (
    select item.*, lease.claims
    from unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::text[], $8::integer[], $9::text[], $10::text[])
        with ordinality as item (run_id, token, key, ordinal, fingerprint, output, error, seen_len, seen, undo, position)
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
    insert into runledger.step (run_id, key, ordinal, fingerprint, output, error, seen_len, seen, undo, claims)
    select
        run_id, key, ordinal, fingerprint, output::json, error::json, seen_len,
        pg_catalog.translate(seen, '[]', '{}')::bigint[], undo::json, claims
    from held
    on conflict (run_id, key) do nothing
)
select
    pg_catalog.array_agg(position) as held,
    case when $11::text is not null then pg_catalog.set_config('idle_in_transaction_session_timeout', '10s', true) end as restless
from held
