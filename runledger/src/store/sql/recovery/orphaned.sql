-- orphaned: finds runs whose lease belongs to a worker that is dead or unknown.
-- in:    $1 how many, $2 runs to leave out
-- out:   run_id
-- locks: none
-- index: worker_pkey
select run_id
from runledger.lease
where not exists (
        select from runledger.worker
        where worker.worker_id = lease.worker_id and worker.state <> 'dead'
    )
    and run_id not in (select left_out from pg_catalog.unnest($2::uuid[]) as left_out)
limit $1
