-- The oid that this table had when the row was written, and the transaction that wrote it. A copy that `create database … template` makes keeps both; a
-- restore makes a new table or writes the row anew. So a client can tell them apart while a restore is still going on. There is no default: it would serve
-- the row of an older dump.
alter table runledger.installation
    add column relation bigint,
    add column written_by bigint;

update runledger.installation
set
    relation = 'runledger.installation'::regclass::oid::bigint,
    written_by = pg_catalog.pg_current_xact_id()::text::bigint
from runledger.here() as here
where installation.database = here.database and coalesce(installation.system = here.system, true);
