-- worker_drain: records that a worker claims no more runs.
-- in:    $1 worker
-- out:   none
-- locks: the worker's row
-- index: worker_pkey
update runledger.worker
set state = 'draining', sleeping = false
where worker_id = $1 and state = 'active'
