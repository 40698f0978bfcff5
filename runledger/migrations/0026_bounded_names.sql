-- The queue and the job of a run are part of the index of `ready`, which cannot store long ones: the statements that wake a run, release it or give it back failed,
-- and with them the settlements of other runs. Only SQL can write such a run, and may not any more. Rows from before are checked only when they are updated.
alter table runledger.run
    add constraint run_names_are_short
    check (pg_catalog.octet_length(queue) operator(pg_catalog.<=) 256 and pg_catalog.octet_length(job) operator(pg_catalog.<=) 256) not valid;
