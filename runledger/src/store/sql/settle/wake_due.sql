-- wake_due: queues suspended runs whose wait has reached its limit.
-- in:    $1 runs
-- out:   run_id; the runs that were woken
-- locks: the rows of `waiting` (deleted), skipping rows that others have locked
-- index: waiting_pkey, run_pkey
with due as (
    select ctid as spot
    from runledger.waiting
    where run_id = any ($1::uuid[]) and wake_at <= pg_catalog.now()
    for update skip locked
),
woken as (
    delete from runledger.waiting
    where ctid = any (array(select spot from due))
    returning run_id, attempt, crashes, claims
),
queued as (
    insert into runledger.ready (run_id, resource, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select woken.run_id, runledger.resource_of(run.options), run.queue, run.job, run.priority, pg_catalog.statement_timestamp(), 'woken', woken.attempt, woken.crashes, woken.claims
    from woken
    cross join lateral (select queue, job, priority, options from runledger.run where run_id = woken.run_id offset 0) as run
)
select run_id
from woken
