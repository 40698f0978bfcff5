-- worker_ask_drain: asks another process to finish its runs and stop. The process sees the request
--                   at its next heartbeat.
-- in:    $1 worker
-- out:   none; no effect on a worker that is dead or unknown
-- locks: the worker's row
-- index: worker_pkey
update runledger.worker
set drain_requested = true
where worker_id = $1 and state <> 'dead'
