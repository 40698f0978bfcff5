-- cancel_take: ends a run that no worker holds as cancelled. The statement after cancel_ask.sql, in the same transaction.
-- in:    $1 run, $2 error
-- out:   run_id, told; one row where the run was taken
-- locks: its row of `ready` or `waiting` (deleted)
-- index: ready_pkey, waiting_pkey, watch_pkey, run_parent. The request of a run that has started others stays until nothing goes on below it.
with unqueued as (
    delete from runledger.ready
    where run_id = $1
    returning run_id, attempt
),
unparked as (
    delete from runledger.waiting
    where run_id = $1
    returning run_id, attempt
),
taken as (
    select run_id, attempt from unqueued
    union all
    select run_id, attempt from unparked
),
ended as (
    insert into runledger.outcome (run_id, state, error, attempt)
    select run_id, 'cancelled', $2::text::json, attempt
    from taken
),
uncancelled as (
    delete from runledger.cancel
    using taken
    where cancel.run_id = taken.run_id and not exists (select from runledger.run where parent_id = taken.run_id offset 0)
),
unwatched as (
    delete from runledger.watch
    using taken
    where watch.run_id = taken.run_id
    returning watch.run_id
),
told as (
    select runledger.notify('runledger_ended', run_id::text)
    from unwatched
)
select run_id, (select count(*) from told) as told
from taken
