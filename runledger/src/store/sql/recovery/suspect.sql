-- suspect: reads how long a worker has been silent, and whether its lock may be tested. The lock
--          counts only in the incarnation of the server in which it was taken.
-- in:    $1 worker
-- out:   silence (in seconds), lock_is_evidence, incarnation
-- locks: none
-- index: worker_pkey
select
    -- Clamped to one year, because the difference to an infinite instant is an error.
    extract(
        epoch from pg_catalog.clock_timestamp() - least(greatest(heartbeat_at, pg_catalog.clock_timestamp() - interval '1 year'), pg_catalog.clock_timestamp() + interval '1 year')
    )::float8 as silence,
    coalesce(lock_incarnation = server.incarnation, false) as lock_is_evidence,
    server.incarnation
from runledger.worker
cross join (select runledger.server_incarnation() as incarnation) as server
where worker_id = $1 and state <> 'dead'
