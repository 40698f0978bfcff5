-- The home database of this installation. A worker that finds these rows in another database is looking at a copy. See docs/decisions/0019-clones.md.

-- The cluster and the database of this session. The system identifier is null if the server hides it from this role.
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

create table runledger.installation (
    -- At most one row.
    only_one boolean primary key default true check (only_one),
    -- Changes with each adoption.
    id uuid not null,
    system text,
    database bigint not null,
    adopted_at timestamptz not null default pg_catalog.clock_timestamp()
);

insert into runledger.installation (id, system, database)
select pg_catalog.gen_random_uuid(), here.system, here.database
from runledger.here() as here;
