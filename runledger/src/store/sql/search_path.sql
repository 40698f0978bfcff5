-- search_path: the path of this session, if functions of other schemas can replace PostgreSQL's own in it.
-- in:    none
-- out:   search_path; one row, null where `pg_catalog` is first, or implicitly first because the path does not name it
-- locks: none
-- index: none. Every name is qualified, because the path of this session is not yet known to be safe. A comma that separates two names has an even number
--        of quotes behind it
select
    case
        when pg_catalog.current_setting('search_path') operator(pg_catalog.~*) ',(?=(?:[^"]*"[^"]*")*[^"]*$)[[:space:]]*(?:"pg_catalog"|pg_catalog)[[:space:]]*(,|$)'
            and not pg_catalog.current_setting('search_path') operator(pg_catalog.~*) '^[[:space:]]*(?:(?:"pg_temp"|pg_temp)[[:space:]]*,[[:space:]]*)?(?:"pg_catalog"|pg_catalog)[[:space:]]*(,|$)'
            then pg_catalog.current_setting('search_path')
    end as search_path
