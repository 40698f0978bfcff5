-- wake_parents: puts parents that wait for one of these ended children back into their queues.
-- in:    $1 ids of runs that ended in this transaction
-- out:   run_id, told; the parents woken
-- locks: the parents' rows of `waiting` (deleted); the parents are locked before, by lock_runs.sql
-- index: run_pkey, waiting_pkey
with woken as (
    delete from runledger.waiting
    where waiting.run_id = any (array(select parent_id from runledger.run where run_id = any($1::uuid[])))
        and waiting.state = 'waiting'
        and waiting.wait_for && $1::uuid[]
    returning waiting.run_id, waiting.attempt, waiting.crashes, waiting.claims
),
queued as (
    insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select woken.run_id, run.queue, run.job, run.priority, statement_timestamp(), 'woken', woken.attempt, woken.crashes, woken.claims
    from woken
    cross join lateral (select queue, job, priority from runledger.run where run_id = woken.run_id offset 0) as run
),
told as (
    select runledger.notify('runledger_ready', '')
    where exists (select from woken)
        and exists (select from runledger.worker where state = 'active' and sleeping)
)
select run_id, (select count(*) from told) as told
from woken
