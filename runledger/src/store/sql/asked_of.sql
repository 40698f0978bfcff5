-- asked_of: what has been asked of a run in hand. Every role may notify, so a notification alone is no request.
-- in:    $1 run
-- out:   cancel, pause; one row. A request to cancel counts only while no step of the run is being undone, as in heartbeat.sql
-- locks: none
-- index: cancel_pkey, pause_pkey, undo_pkey
select
    exists (select from runledger.cancel where cancel.run_id = $1)
        and not exists (select from runledger.undo where undo.run_id = $1) as cancel,
    exists (select from runledger.pause where pause.run_id = $1) as pause
