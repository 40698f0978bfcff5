-- suspect: whether a silent worker's lock may be tested: only in the incarnation of the server in which it was taken.
-- in:    $1 worker
-- out:   silence (in seconds), lock_is_evidence, incarnation
-- locks: none
-- index: worker_pkey
select
    extract(epoch from pg_catalog.clock_timestamp() - heartbeat_at)::float8 as silence,
    coalesce(lock_incarnation = server.incarnation, false) as lock_is_evidence,
    server.incarnation
from runledger.worker
cross join (select runledger.server_incarnation() as incarnation) as server
where worker_id = $1 and state <> 'dead'
