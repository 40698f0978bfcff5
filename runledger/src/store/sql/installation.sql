-- installation: the id of this installation, and whether it lives in this database. The last adoption decides this.
-- in:    none
-- out:   id (null if none is recorded), made_in (the database and the cluster of the adoption), here (those of this session), is_home (an unknown system
--        identifier on either side counts as equal); one row
-- locks: none
-- index: installation_pkey
select
    installation.id,
    pg_catalog.concat_ws(' of system ', pg_catalog.concat('database ', installation.database), installation.system) as made_in,
    pg_catalog.concat_ws(' of system ', pg_catalog.concat('database ', here.database), here.system) as here,
    coalesce(installation.database = here.database, false) and coalesce(installation.system = here.system, true) as is_home
from runledger.here() as here
left join runledger.installation on installation.only_one
