-- resume: lets a blocked run go on, with its attempts as they were and its crashes forgotten.
-- in:    $1 run
-- out:   run_id, told; one row where the run was blocked
-- locks: its row of `waiting` (deleted)
-- index: waiting_pkey, run_pkey
with unblocked as (
    delete from runledger.waiting
    where run_id = $1 and state = 'blocked'
    returning run_id, attempt, claims
),
queued as (
    insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select unblocked.run_id, run.queue, run.job, run.priority, statement_timestamp(), 'resumed', unblocked.attempt, 0, unblocked.claims
    from unblocked
    cross join lateral (select queue, job, priority from runledger.run where run_id = unblocked.run_id offset 0) as run
),
told as (
    select runledger.notify('runledger_ready', '')
    where exists (select from unblocked)
        and exists (select from runledger.worker where state = 'active' and sleeping)
)
select run_id, (select count(*) from told) as told
from unblocked
