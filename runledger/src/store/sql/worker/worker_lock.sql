-- worker_lock: takes the session lock that shows that this process is alive.
-- in:    $1 worker
-- out:   locked
-- locks: a session advisory lock, on this connection, until it closes
-- index: none
--
-- The class of the lock is the oid of our own table, so two installations in one database never
-- share a key.
select pg_catalog.pg_try_advisory_lock('runledger.worker'::regclass::oid::int4, ($1::bigint % 2147483647::bigint)::int4) as locked
