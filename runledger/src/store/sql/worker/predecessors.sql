-- predecessors: lists other living workers of a name, and whether their locks may be tested. A
--               process that restarts under its name need not wait.
-- in:    $1 name, $2 own worker
-- out:   worker_id, lock_is_evidence
-- locks: none
-- index: worker_living
select worker_id, coalesce(lock_incarnation = runledger.server_incarnation(), false) as lock_is_evidence
from runledger.worker
where state <> 'dead' and name = $1 and worker_id <> $2
