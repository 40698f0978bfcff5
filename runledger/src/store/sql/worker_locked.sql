-- worker_locked: notes in which incarnation of the server the lock was taken. Lock evidence counts in that one only. A heartbeat as well: silence
--                that is noted beside this incarnation must have fallen into it.
-- in:    $1 worker
-- out:   none
-- locks: the worker's row
-- index: worker_pkey
update runledger.worker
set lock_incarnation = runledger.server_incarnation(), heartbeat_at = pg_catalog.clock_timestamp()
where worker_id = $1
