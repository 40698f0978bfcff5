-- The home of this installation: its cluster and its database. A worker that finds another home is
-- looking at a copy, and refuses it until an operator adopts it. See docs/decisions/0019-clones.md.

-- The cluster and the database of this session. The system identifier is null if the server hides
-- it from this role.
create function runledger.here(out system text, out database bigint)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    database := (select oid::bigint from pg_catalog.pg_database where datname = pg_catalog.current_database());
    begin
        system := (select system_identifier::text from pg_catalog.pg_control_system());
    exception when insufficient_privilege or undefined_function or feature_not_supported then
        system := null;
    end;
end
$$;

-- One row. A dump that is loaded over a migrated database adds the row of its own home; with two
-- homes, workers refuse the database until it is adopted.
create table runledger.installation (
    -- Changes with each adoption.
    id uuid primary key,
    system text,
    database bigint not null,
    adopted_at timestamptz not null default clock_timestamp(),
    -- The oid of this table and the transaction, both when the row was written. A copy that `create
    -- database … template` makes keeps both; a restore makes a new table or writes the row again.
    -- So a client can tell them apart during a restore.
    relation bigint,
    written_by bigint
);

-- Two adoptions at the same time leave one row.
create unique index installation_home on runledger.installation (database, (coalesce(system, '') collate "C"));

insert into runledger.installation (id, system, database, relation, written_by)
select
    gen_random_uuid(),
    here.system,
    here.database,
    'runledger.installation'::regclass::oid::bigint,
    pg_current_xact_id()::text::bigint
from runledger.here() as here;
