-- The runs whose attempts ended with a worker.
create index attempt_worker on runledger.attempt (worker_id, run_id) where step_key = '';

-- The workers of one process.
create index worker_session on runledger.worker (session_name collate "C");
