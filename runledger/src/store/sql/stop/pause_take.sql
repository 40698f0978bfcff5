-- pause_take: pauses a run that no worker holds and that has a pause request.
-- in:    $1 run
-- out:   run_id; one row if the run was taken
-- locks: its rows of `ready` or `waiting`, and of `pause` (deleted); lock_runs.sql has locked the
--        run
-- index: ready_pkey, waiting_pkey, pause_pkey
--
-- A queued run keeps its due time. A waiting run finds again what it waited for when it is resumed.
with unqueued as (
    delete from runledger.ready
    where run_id = $1 and exists (select from runledger.pause where pause.run_id = $1)
    returning run_id, attempt, crashes, claims, ready_at
),
unparked as (
    delete from runledger.waiting
    where run_id = $1 and state = 'waiting' and exists (select from runledger.pause where pause.run_id = $1)
    returning run_id, attempt, crashes, claims, pg_catalog.statement_timestamp() as ready_at
),
taken as (
    select * from unqueued
    union all
    select * from unparked
),
granted as (
    delete from runledger.pause
    where run_id = any (array(select run_id from taken))
    returning run_id, reason
),
paused as (
    insert into runledger.waiting (run_id, state, ready_at, reason, attempt, crashes, claims, since)
    select run_id, 'paused', ready_at, granted.reason, attempt, crashes, claims, pg_catalog.statement_timestamp()
    from taken
    join granted using (run_id)
)
select run_id
from taken
