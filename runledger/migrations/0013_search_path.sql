-- A function without its own `search_path` resolves names in its caller's. A role that may create in `public` can define a better match there for a call than
-- PostgreSQL's own. Two functions keep the path of their caller, because the planner never inlines a function with a setting; they qualify every name.
alter function runledger.is_to_undo(uuid) set search_path = pg_catalog, pg_temp;
alter function runledger.notify(text, text) set search_path = pg_catalog, pg_temp;
alter function runledger.given(uuid) set search_path = pg_catalog, pg_temp;
alter function runledger.is_living(runledger.worker) set search_path = pg_catalog, pg_temp;
alter function runledger.hopeless(text, text) set search_path = pg_catalog, pg_temp;

create or replace function runledger.resource_of(options json) returns text
language sql immutable
as $$
    select coalesce($1 operator(pg_catalog.->>) 'resource'::pg_catalog.text, '');
$$;

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
    where not exists (select from held where held.number operator(pg_catalog.=) slot.number)
    order by slot.number
    limit greatest((select permits from wanted) operator(pg_catalog.-) (select pg_catalog.count(*) from held), 0);
$$;
