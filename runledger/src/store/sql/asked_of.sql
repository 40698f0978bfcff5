-- asked_of: whether a run is to be cancelled or paused. Every role can send a notification, so only these rows count.
-- in:    $1 run
-- out:   cancel, pause; one row. A request to cancel counts only while no step of the run is being undone, as in heartbeat.sql
-- locks: none
-- index: cancel_pkey, pause_pkey, undo_pkey
select
    exists (select from runledger.cancel where cancel.run_id = $1)
        and not exists (select from runledger.undo where undo.run_id = $1) as cancel,
    exists (select from runledger.pause where pause.run_id = $1) as pause
