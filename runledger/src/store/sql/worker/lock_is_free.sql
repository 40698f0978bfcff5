-- lock_is_free: tests the session lock of a suspect. Never on a connection that holds session
--               locks, because they are re-entrant.
-- in:    $1 worker
-- out:   free
-- locks: the advisory lock, until the end of the transaction
-- index: none
select pg_catalog.pg_try_advisory_xact_lock('runledger.worker'::regclass::oid::int4, ($1::bigint % 2147483647::bigint)::int4) as free
