-- search_path: returns the search path of this session, if functions of other schemas can replace
--              PostgreSQL's own.
-- in:    none
-- out:   search_path; one row
-- locks: none
-- index: none
--
-- The result is null if `pg_catalog` is first, or if the path does not name it, which makes it
-- first. The statement qualifies every name, because the path is not yet known to be safe. A comma
-- separates two names if an even number of quotes follows it.
select
    case
        when pg_catalog.current_setting('search_path') operator(pg_catalog.~*) ',(?=(?:[^"]*"[^"]*")*[^"]*$)[[:space:]]*(?:"pg_catalog"|pg_catalog)[[:space:]]*(,|$)'
            and not pg_catalog.current_setting('search_path') operator(pg_catalog.~*) '^[[:space:]]*(?:(?:"pg_temp"|pg_temp)[[:space:]]*,[[:space:]]*)?(?:"pg_catalog"|pg_catalog)[[:space:]]*(,|$)'
            then pg_catalog.current_setting('search_path')
    end as search_path
