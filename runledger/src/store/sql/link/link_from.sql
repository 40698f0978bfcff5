-- link_from: reads the payloads of the origin of a new run. Encrypted payloads are bound to their
--            run, so the client encrypts them again.
-- in:    $1 run
-- out:   input, continued (the input after continue as new, else null), steps (as in claim.sql),
--        signals, progress; one row if the run exists
-- locks: none; a signal between this statement and link.sql belongs to the old run only
-- index: run_pkey, continuation_pkey, step_pkey, signal_pkey, progress_pkey
select
    run.input::text as input,
    (select input::text from runledger.continuation where continuation.run_id = run.run_id) as continued,
    (
        select pg_catalog.json_agg(pg_catalog.json_build_array(step.key, step.ordinal, step.fingerprint, step.output, step.error, step.seen_len, step.seen, step.compensation))::text
        from runledger.step
        where step.run_id = run.run_id
    ) as steps,
    (
        select pg_catalog.json_agg(pg_catalog.json_build_array(sent.name, sent.number, sent.idempotency_key, sent.payload))::text
        from runledger.signal as sent
        where sent.run_id = run.run_id
    ) as signals,
    (
        select pg_catalog.json_agg(pg_catalog.json_build_array(noted.step_key, noted.value))::text
        from runledger.progress as noted
        where noted.run_id = run.run_id
    ) as progress
from runledger.run
where run.run_id = $1
