-- adopt: records this database as the home of its installation, under a new id.
-- in:    $1 whether to adopt only if no unfinished run is left
-- out:   id; none where this is its home already, or such runs are left
-- locks: installation
-- index: installation_pkey
insert into runledger.installation as installation (id, system, database)
select pg_catalog.gen_random_uuid(), here.system, here.database
from runledger.here() as here
where not $1
    or not (
        exists (select from runledger.ready)
        or exists (select from runledger.lease)
        or exists (select from runledger.waiting)
    )
on conflict (only_one) do update
set id = excluded.id, system = excluded.system, database = excluded.database, adopted_at = excluded.adopted_at
where installation.database <> excluded.database or installation.system <> excluded.system
returning installation.id
