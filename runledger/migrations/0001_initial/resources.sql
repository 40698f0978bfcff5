-- Resources: workers execute at most as many runs of a resource at the same time as it has permits.
-- See docs/decisions/0017-resources.md.

-- The number of permits. A resource without a row has one.
create table runledger.resource (
    name text collate "C" primary key,
    -- Each claim of the resource lists its permits.
    permits integer not null check (permits between 0 and 10000),
    changed_at timestamptz not null default clock_timestamp()
);

-- The last holder of each permit. The run holds it as long as its lease has this token, so nobody
-- has to return it.
create table runledger.permit (
    resource text collate "C" not null,
    number integer not null check (number >= 1),
    run_id uuid not null,
    token uuid not null,
    primary key (resource, number)
)
with (fillfactor = 50);

-- The free permits of a resource, with the lease that held each one last. If more permits are held
-- than the resource now has, none is free. `is not true` avoids an anti join: without hash joins,
-- which the engine's sessions switch off, it would compare each permit with each held one. Every
-- name is qualified, so that the planner can inline the function.
create function runledger.free_permits(resource text) returns table (number integer, last_token uuid)
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
