-- worker_register: registers a worker. Its number is the key of the lock that it takes next.
-- in:    $1 name, $2 version, $3 session name, $4 jobs, $5 queues
-- out:   worker_id, started_at (by the database's clock)
-- locks: none
-- index: worker_pkey
insert into runledger.worker (name, version, session_name, jobs, queues)
values ($1, $2, $3, $4, $5)
returning worker_id, started_at
