-- worker_drain: notes that a worker takes nothing new.
-- in:    $1 worker
-- out:   none
-- locks: the worker's row
-- index: worker_pkey
update runledger.worker
set state = 'draining', sleeping = false
where worker_id = $1 and state = 'active'
