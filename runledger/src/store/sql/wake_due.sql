-- wake_due: puts runs whose wait has a limit back into their queues when it is over.
-- in:    $1 how many
-- out:   how many were woken
-- locks: the rows of `waiting` (deleted), skipping those that others hold
-- index: waiting_wake
with due as (
    select run_id
    from runledger.waiting
    where wake_at <= now()
    order by wake_at
    limit $1
    for update skip locked
),
woken as (
    delete from runledger.waiting
    using due
    where waiting.run_id = due.run_id
    returning waiting.run_id, waiting.attempt, waiting.crashes, waiting.claims
),
queued as (
    insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select woken.run_id, run.queue, run.job, run.priority, statement_timestamp(), 'woken', woken.attempt, woken.crashes, woken.claims
    from woken
    join runledger.run using (run_id)
)
select count(*) as woken
from woken
