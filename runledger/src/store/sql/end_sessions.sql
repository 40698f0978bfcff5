-- end_sessions: ends the sessions of a dead worker, so that a transaction of a paused process lets go of its rows.
-- in:    $1 worker
-- out:   ended (how many)
-- locks: none
-- index: worker_pkey; pg_stat_activity has none
select count(pg_terminate_backend(pid)) as ended
from pg_stat_activity
join runledger.worker on worker.session_name = application_name
where worker.worker_id = $1
    and usename = current_user
    and datname = current_database()
    and pid <> pg_backend_pid()
    and backend_start < worker.died_at
