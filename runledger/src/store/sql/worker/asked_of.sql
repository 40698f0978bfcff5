-- asked_of: reads whether a run has a request to cancel or to pause. Every role can send a
--           notification, so only these rows count.
-- in:    $1 run
-- out:   cancel, pause; one row. A request to cancel a compensating run does not count, as in
--        heartbeat.sql
-- locks: none
-- index: cancel_pkey, pause_pkey, compensation_pkey
select
    exists (select from runledger.cancel where cancel.run_id = $1)
        and not exists (select from runledger.compensation where compensation.run_id = $1) as cancel,
    exists (select from runledger.pause where pause.run_id = $1) as pause
