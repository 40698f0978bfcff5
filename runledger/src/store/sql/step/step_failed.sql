-- step_failed: records failed attempts of steps that will be retried.
-- in:    $1 run ids, $2 tokens, $3 keys, $4 attempts, $5 errors, $6 durations of the attempts in
--        microseconds
-- out:   held; one row: the positions, from 1, of the items whose fence holds
-- locks: `for key share` on the leases
-- index: lease_pkey, attempt_pkey
with held as (
    select item.*, lease.claims, lease.worker_id
    from unnest($1::uuid[], $2::uuid[], $3::text[], $4::integer[], $5::text[], $6::bigint[])
        with ordinality as item (run_id, token, key, attempt, error, took_us, position)
    cross join lateral (
        select *
        from runledger.lease
        where run_id = item.run_id and token = item.token
        offset 0
        for key share
    ) as lease
),
kept as (
    insert into runledger.attempt (run_id, step_key, claims, attempt, worker_id, started_at, error)
    select run_id, key, claims, attempt, worker_id, pg_catalog.statement_timestamp() - took_us::float8 * interval '1 microsecond', error::json
    from held
    on conflict do nothing
)
select pg_catalog.array_agg(position) as held
from held
