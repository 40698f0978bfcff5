-- link_from: the payloads of a run of which another is to be made: sealed ones are sealed for their run, so the client seals them anew.
-- in:    $1 run
-- out:   input, continued (the input of one that has begun anew, else null), steps (as a claim brings them), signals; one row where it exists
-- locks: none; a signal that is sent between this and link.sql comes after the new run, and is the old one's alone
-- index: run_pkey, continuation_pkey, step_pkey, signal_pkey
select
    run.input::text as input,
    (select input::text from runledger.continuation where continuation.run_id = run.run_id) as continued,
    (
        select pg_catalog.json_agg(pg_catalog.json_build_array(step.key, step.ordinal, step.fingerprint, step.output, step.error, step.seen_len, step.seen, step.undo))::text
        from runledger.step
        where step.run_id = run.run_id
    ) as steps,
    (
        select pg_catalog.json_agg(pg_catalog.json_build_array(sent.name, sent.number, sent.idempotency_key, sent.payload))::text
        from runledger.signal as sent
        where sent.run_id = run.run_id
    ) as signals
from runledger.run
where run.run_id = $1
