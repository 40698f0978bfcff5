-- worker_ask_drain: asks another process to finish what it has and stop; it sees it at its next heartbeat.
-- in:    $1 worker
-- out:   none; a worker that is dead or unknown is not touched
-- locks: the worker's row
-- index: worker_pkey
update runledger.worker
set drain_requested = true
where worker_id = $1 and state <> 'dead'
