-- server: reads the settings that the engine checks before it writes anything.
-- in:    none
-- out:   version_num, version, encoding (of the database), in_recovery, read_only, database, role
--        (quoted as an identifier), creates_in_ours; one row
-- locks: none
-- index: pg_namespace_nspname_index
--
-- `creates_in_ours`: a table that the role creates without a schema name goes into our schema, or
-- would as soon as our schema exists. Names without quotes are folded to lower case. A comma
-- separates two names if an even number of quotes follows it.
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
