-- lock_held: returns whether this session holds an advisory lock. The control connection takes only
--            its worker's lock.
-- in:    none
-- out:   held; one row
-- locks: none
-- index: none
select exists (select from pg_catalog.pg_locks where locktype = 'advisory' and pid = pg_catalog.pg_backend_pid() and granted) as held
