-- adopt: records this database as the home of its installation, under a new id if it was none before, and forgets all other homes.
-- in:    $1 whether to adopt only if no unfinished run is left
-- out:   id; none where this is its only home already, or such runs are left
-- locks: the other rows of `installation` (deleted)
-- index: installation_pkey
with here as (
    select system, database
    from runledger.here()
),
recorded as (
    select installation.id, installation.database = here.database and coalesce(installation.system = here.system, true) as is_here
    from runledger.installation
    cross join here
),
allowed as (
    select
    where (exists (select from recorded where not is_here) or not exists (select from recorded))
        and (
            not $1
            or not (
                exists (select from runledger.ready)
                or exists (select from runledger.lease)
                or exists (select from runledger.waiting)
            )
        )
),
forgotten as (
    delete from runledger.installation
    where id = any (array(select id from recorded where not is_here)) and exists (select from allowed)
),
made as (
    insert into runledger.installation (id, system, database)
    select pg_catalog.gen_random_uuid(), system, database
    from here
    where exists (select from allowed) and not exists (select from recorded where is_here)
    on conflict do nothing
    returning id
)
select id
from made
union all
select id
from recorded
where is_here and exists (select from allowed)
limit 1
