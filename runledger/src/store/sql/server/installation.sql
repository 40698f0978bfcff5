-- installation: reads the id of this installation, and whether this database is its home. The last
--               adoption decides that.
-- in:    none
-- out:   id, made_in, here, is_home; one row
-- locks: none
-- index: none; `installation` has one row, and one more for each dump that was loaded
--
-- `id` is null if no installation is recorded. If several are recorded, because a dump was loaded
-- over the tables, it is the id of another database. `made_in` names the database and the cluster
-- of the adoption, and `here` those of this session. `is_home`: every record names this database.
-- An unknown system identifier counts as equal.
select
    recorded.id,
    pg_catalog.concat_ws(' of system ', pg_catalog.concat('database ', recorded.database), recorded.system) as made_in,
    pg_catalog.concat_ws(' of system ', pg_catalog.concat('database ', here.database), here.system) as here,
    coalesce(recorded.is_here, false) as is_home
from runledger.here() as here
left join lateral (
    select id, database, system, database = here.database and coalesce(system = here.system, true) as is_here
    from runledger.installation
    order by is_here, adopted_at
    limit 1
) as recorded on true
