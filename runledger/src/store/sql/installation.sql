-- installation: the id of this installation, and whether it lives in this database. The last adoption decides this. A dump that was loaded over the
--        tables has added the record of another installation.
-- in:    none
-- out:   id (null if none is recorded; another database's, if there are several), made_in (the database and the cluster of the adoption), here (those of
--        this session), is_home (whether all records are of this database; an unknown system identifier on either side counts as equal); one row
-- locks: none
-- index: none; `installation` has one row, or one more for each dump that was loaded
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
