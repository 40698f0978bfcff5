-- worker_locked: records the incarnation of the server in which the lock was taken. The lock is
--                evidence only in that incarnation.
-- in:    $1 worker
-- out:   none
-- locks: the worker's row
-- index: worker_pkey
--
-- This is also a heartbeat: any silence that is measured with this incarnation began in it.
update runledger.worker
set lock_incarnation = runledger.server_incarnation(), heartbeat_at = pg_catalog.clock_timestamp()
where worker_id = $1
