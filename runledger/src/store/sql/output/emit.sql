-- emit: appends lines to the outputs of runs. Skips a line that is already there: the same body
--       emitted it before, under the same number.
-- in:    $1 run ids, $2 tokens, $3 step keys (empty for the run itself), $4 numbers,
--        $5 fingerprints, $6 values, $7 the most lines of a run, $8 the most bytes
-- out:   held, beyond; one row
-- locks: `for key share` on the leases
-- index: lease_pkey, output_pkey, output_line
--
-- `held` has the positions, from 1, of the items whose fence holds. `beyond` has the positions of
-- those among them that exceed a limit.
-- Only the holder of the lease appends, one statement after another. A statement that is repeated
-- while its first execution still runs fails with a unique violation.
with held as (
    select item.*
    from unnest($1::uuid[], $2::uuid[], $3::text[], $4::integer[], $5::bigint[], $6::text[]) with ordinality
        as item (run_id, token, step_key, number, fingerprint, value, position)
    cross join lateral (
        select
        from runledger.lease
        where run_id = item.run_id and token = item.token
        offset 0
        for key share
    ) as lease
),
fresh as (
    select held.*, pg_catalog.row_number() over said as nth, pg_catalog.sum(pg_catalog.octet_length(value)) over said as bytes
    from held
    where not exists (
        select
        from runledger.output as known
        where known.run_id = held.run_id
            and known.step_key = held.step_key
            and known.number = held.number
            and known.fingerprint = held.fingerprint
        offset 0
    )
    window said as (partition by run_id order by position)
),
placed as (
    select fresh.*, coalesce(last.position, 0) + fresh.nth as place, coalesce(last.bytes, 0) + fresh.bytes as total
    from fresh
    left join lateral (
        select position, bytes
        from runledger.output
        where run_id = fresh.run_id
        order by position desc
        limit 1
    ) as last on true
),
appended as (
    insert into runledger.output (run_id, position, step_key, number, fingerprint, value, bytes)
    select run_id, place, step_key, number, fingerprint, value::json, total
    from placed
    where place <= $7::bigint and total <= $8::bigint
)
select
    (select pg_catalog.array_agg(position) from held) as held,
    (select pg_catalog.array_agg(position) from placed where place > $7::bigint or total > $8::bigint) as beyond
