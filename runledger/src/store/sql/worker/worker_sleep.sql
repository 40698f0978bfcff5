-- worker_sleep: records whether a worker sleeps, so that an enqueue notifies only sleeping workers.
-- in:    $1 worker, $2 sleeping
-- out:   none
-- locks: the worker's row
-- index: worker_pkey
update runledger.worker
set sleeping = $2
where worker_id = $1 and sleeping <> $2
