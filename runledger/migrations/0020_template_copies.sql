-- The oid that this table had when the row was written. A copy that `create database … template` makes has it too; a restore makes a new table. So a
-- client can tell them apart while a restore is still going on. The default serves older programs, which do not name the column.
alter table runledger.installation add column relation bigint;

update runledger.installation
set relation = 'runledger.installation'::regclass::oid::bigint
from runledger.here() as here
where installation.database = here.database and coalesce(installation.system = here.system, true);

alter table runledger.installation alter column relation set default ('runledger.installation'::regclass::oid::bigint);
