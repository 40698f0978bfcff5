-- The permits of a resource that nobody holds. `is not true` keeps the planner from an anti join: without hash joins, which the engine's sessions switch
-- off, it compares each permit with each held one.
create or replace function runledger.free_permits(resource text) returns table (number integer, last_token uuid)
language sql stable
as $$
    with wanted as (
        select coalesce((select permits from runledger.resource where name operator(pg_catalog.=) $1), 1) as permits
    ),
    held as (
        select permit.number
        from runledger.permit
        where permit.resource operator(pg_catalog.=) $1
            and exists (
                select
                from runledger.lease
                where lease.run_id operator(pg_catalog.=) permit.run_id and lease.token operator(pg_catalog.=) permit.token
                offset 0
            )
    )
    select slot.number, last.token
    from wanted
    cross join lateral pg_catalog.generate_series(1, wanted.permits) as slot (number)
    left join lateral (
        select token
        from runledger.permit
        where permit.resource operator(pg_catalog.=) $1 and permit.number operator(pg_catalog.=) slot.number
        offset 0
    ) as last on true
    where (slot.number operator(pg_catalog.=) any (select held.number from held)) is not true
    order by slot.number
    limit greatest((select permits from wanted) operator(pg_catalog.-) (select pg_catalog.count(*) from held), 0);
$$;
