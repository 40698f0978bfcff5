-- lock_held: whether this session has a session lock: the control connection takes no other than its worker's.
-- in:    none
-- out:   held; one row
-- locks: none
-- index: none
select exists (select from pg_catalog.pg_locks where locktype = 'advisory' and pid = pg_catalog.pg_backend_pid() and granted) as held
