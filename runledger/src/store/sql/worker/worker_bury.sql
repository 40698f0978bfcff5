-- worker_bury: marks a worker dead. This is final: if the process comes back, it registers under a
--              new number.
-- in:    $1 worker, $2 seconds of silence that must still hold, $3 why
-- out:   worker_id; one row if this statement marked the worker dead
-- locks: the worker's row; after a wait for the lock, the statement tests the silence again
-- index: worker_pkey
update runledger.worker
set state = 'dead', sleeping = false, died_at = pg_catalog.clock_timestamp(), died_why = $3
where worker_id = $1 and state <> 'dead' and heartbeat_at <= pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $2)
returning worker_id
