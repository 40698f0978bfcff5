-- Resources: of the runs that need one, at most as many are with workers as it has permits. See docs/decisions/0017-resources.md.

-- How many permits there are of a resource of which somebody has said it; any other has one.
create table runledger.resource (
    name text collate "C" primary key,
    permits integer not null check (permits >= 0),
    changed_at timestamptz not null default clock_timestamp()
);

-- Who had a permit last. It is held as long as that run has the lease with this token: nobody gives it back, and nothing can keep it longer.
create table runledger.permit (
    resource text collate "C" not null,
    number integer not null check (number >= 1),
    run_id uuid not null,
    token uuid not null,
    primary key (resource, number)
)
with (fillfactor = 50);

-- The resource of a run with these options; empty where it needs none.
create function runledger.resource_of(options json) returns text
language sql immutable
as $$
    select coalesce($1 ->> 'resource', '');
$$;

-- The permits of a resource that nobody holds, with the lease that each was taken for last: as many as are left, where more are held than there are by now.
create function runledger.free_permits(resource text) returns table (number integer, last_token uuid)
language sql stable
as $$
    with said as (
        select coalesce((select permits from runledger.resource where name = $1), 1) as permits
    ),
    held as (
        select permit.number
        from runledger.permit
        where permit.resource = $1
            and exists (select from runledger.lease where lease.run_id = permit.run_id and lease.token = permit.token offset 0)
    )
    select slot.number, last.token
    from said
    cross join lateral generate_series(1, said.permits) as slot (number)
    left join lateral (select token from runledger.permit where permit.resource = $1 and permit.number = slot.number offset 0) as last on true
    where slot.number not in (select held.number from held)
    order by slot.number
    limit greatest((select permits from said) - (select count(*) from held), 0);
$$;

-- The resource of the run: one that needs a permit is in none of the lanes that claims look through.
alter table runledger.ready add column resource text collate "C" not null default '';

drop index runledger.ready_lane;
create index ready_lane on runledger.ready (resource, queue, job, priority, ready_at, run_id);
