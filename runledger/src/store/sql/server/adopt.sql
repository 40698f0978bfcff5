-- adopt: makes this database the only home of its installation. A copy gets a new id.
-- in:    $1 whether to adopt only a template copy without a live run
-- out:   id; no row if this database is already the only home, or if $1 forbids the adoption
-- locks: the other rows of `installation` (deleted)
-- index: installation_pkey
--
-- A template copy was created in this cluster by `create database` with a template. A restore in
-- progress may have no live run yet, but it is not a template copy: it recreated the table or the
-- row, or it added a second row.
with here as (
    select system, database
    from runledger.here()
),
recorded as (
    select
        installation.id,
        coalesce(installation.system = here.system, true)
            and coalesce(
                installation.relation = 'runledger.installation'::regclass::oid::bigint
                and installation.written_by % 4294967296::bigint = installation.xmin::text::bigint,
                false
            ) as is_of_template,
        installation.database = here.database and coalesce(installation.system = here.system, true) as is_here
    from runledger.installation
    cross join here
),
allowed as (
    select
    where (exists (select from recorded where not is_here) or not exists (select from recorded))
        and (
            not $1
            or (select pg_catalog.count(*) = 1 and pg_catalog.bool_and(is_of_template) from recorded)
            and not (
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
    insert into runledger.installation (id, system, database, relation, written_by)
    select
        pg_catalog.gen_random_uuid(), system, database,
        'runledger.installation'::regclass::oid::bigint, pg_catalog.pg_current_xact_id()::text::bigint
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
