-- server: what must be right before anything is written.
-- in:    none
-- out:   version_num, version, encoding (of the database), in_recovery, read_only, database, role (as statements name it), creates_in_ours (whether a table that the role makes
--        without naming a schema gets into ours, or would as soon as ours is there; names without quotes are read in lower case; a comma that separates
--        two names has an even number of quotes behind it); one row
-- locks: none
-- index: pg_namespace_nspname_index
select
    pg_catalog.current_setting('server_version_num')::integer as version_num,
    pg_catalog.current_setting('server_version') as version,
    pg_catalog.current_setting('server_encoding') as encoding,
    pg_catalog.pg_is_in_recovery() as in_recovery,
    pg_catalog.current_setting('default_transaction_read_only') = 'on' as read_only,
    pg_catalog.current_database()::text as database,
    pg_catalog.quote_ident(current_user) as role,
    coalesce((
        select schema.name = 'runledger'
        from pg_catalog.regexp_split_to_table(
            pg_catalog.current_setting('search_path'), ',(?=(?:[^"]*"[^"]*")*[^"]*$)'
        ) with ordinality as part (name, place)
        cross join lateral (
            select case when trim(part.name) like '"%"' then pg_catalog.replace(trim(part.name), '"', '') else pg_catalog.lower(trim(part.name)) end as name
        ) as written
        cross join lateral (select case written.name when '$user' then current_user::text else written.name end as name) as schema
        where schema.name = 'runledger' or exists (select from pg_namespace where nspname = schema.name)
        order by part.place
        limit 1
    ), false) as creates_in_ours
