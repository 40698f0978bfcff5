-- worker_locked: notes in which incarnation of the server the lock was taken. Lock evidence counts in that one only.
-- in:    $1 worker
-- out:   none
-- locks: the worker's row
-- index: worker_pkey
update runledger.worker
set lock_incarnation = runledger.server_incarnation()
where worker_id = $1
