-- end_sessions: ends the sessions of a dead worker, so that a transaction of a paused process
--               releases its rows.
-- in:    $1 worker
-- out:   ended (how many)
-- locks: none
-- index: worker_pkey, worker_living; pg_stat_activity has none
--
-- Workers of one process may share a pool, so the sessions of the pool end only with the last of
-- these workers.
select pg_catalog.count(pg_catalog.pg_terminate_backend(pid)) as ended
from pg_catalog.pg_stat_activity
join runledger.worker on worker.session_name = application_name
where worker.worker_id = $1
    and usename = current_user
    and datname = pg_catalog.current_database()
    and pid <> pg_catalog.pg_backend_pid()
    and backend_start < worker.died_at
    and not exists (
        select from runledger.worker as living
        where living.session_name = worker.session_name
            and living.state <> 'dead'
    )
