-- progress: stores the latest progress of bodies. Replaces the previous value of each body.
-- in:    $1 run ids, $2 tokens, $3 step keys (empty for the run itself), $4 values
-- out:   held; one row: the positions, from 1, of the items whose fence holds
-- locks: `for key share` on the leases, the rows of `progress`
-- index: lease_pkey, progress_pkey
--
-- If a batch has several values for one body, the last one is stored.
with held as (
    select item.*
    from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[]) with ordinality as item (run_id, token, step_key, value, position)
    cross join lateral (
        select
        from runledger.lease
        where run_id = item.run_id and token = item.token
        offset 0
        for key share
    ) as lease
),
noted as (
    insert into runledger.progress (run_id, step_key, value)
    select distinct on (run_id, step_key) run_id, step_key, value::json
    from held
    order by run_id, step_key, position desc
    on conflict (run_id, step_key) do update
    set value = excluded.value, noted_at = pg_catalog.statement_timestamp()
)
select pg_catalog.array_agg(position) as held
from held
