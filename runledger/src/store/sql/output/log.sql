-- log: appends log lines of bodies, up to the limits of each run.
-- in:    $1 run ids, $2 step keys (empty for the run itself), $3 attempts, $4 levels, $5 targets,
--        $6 lines, $7 ages in microseconds, $8 the most lines of a run, $9 the most bytes
-- out:   kept, beyond; one row: the positions, from 1, of the items that were stored, and of those
--        that exceed a limit
-- locks: none
-- index: log_pkey
--
-- An item may be in neither array: another worker stored a line of the same run under its number.
-- The caller sends such an item again.
with placed as (
    select
        item.*, coalesce(last.number, 0) + item.nth as place, coalesce(last.bytes, 0) + item.line_bytes as total
    from (
        select said.*, pg_catalog.row_number() over of_run as nth, pg_catalog.sum(pg_catalog.octet_length(line)) over of_run as line_bytes
        from unnest($1::uuid[], $2::text[], $3::integer[], $4::text[], $5::text[], $6::text[], $7::bigint[]) with ordinality
            as said (run_id, step_key, attempt, level, target, line, ago_us, position)
        window of_run as (partition by run_id order by position)
    ) as item
    left join lateral (
        select number, bytes
        from runledger.log
        where log.run_id = item.run_id
        order by number desc
        limit 1
    ) as last on true
),
kept as (
    insert into runledger.log (run_id, number, step_key, attempt, level, target, line, bytes, logged_at)
    select
        run_id, place, step_key, attempt, level, target, line::json, total, pg_catalog.statement_timestamp() - ago_us::float8 * interval '1 microsecond'
    from placed
    where place <= $8::bigint and total <= $9::bigint
    order by run_id, place
    on conflict (run_id, number) do nothing
    returning run_id, number
)
select
    (select pg_catalog.array_agg(position) from placed join kept on kept.run_id = placed.run_id and kept.number = placed.place) as kept,
    (select pg_catalog.array_agg(position) from placed where place > $8::bigint or total > $9::bigint) as beyond
