-- worker_bury: declares a worker dead. Final: the process, if it comes back, takes a new number.
-- in:    $1 worker, $2 seconds of silence that must still hold, $3 why
-- out:   worker_id; one row where it was buried now
-- locks: the worker's row; the silence is tested again after a wait for it
-- index: worker_pkey
update runledger.worker
set state = 'dead', sleeping = false, died_at = pg_catalog.clock_timestamp(), died_why = $3
where worker_id = $1 and state <> 'dead' and heartbeat_at <= pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $2)
returning worker_id
