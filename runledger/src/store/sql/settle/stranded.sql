-- stranded: finds runs that wait for children which have already ended. A safety sweep: empty
--           unless a wake-up was lost.
-- in:    $1 how many, $2 runs to leave out
-- out:   run_id (the waiting run)
-- locks: none
-- index: waiting_pkey, outcome_pkey
--
-- Finds a run that waits for any of several children if one has ended, and a run that waits for all
-- of them if all have.
select waiting.run_id
from runledger.waiting
where waiting.state = 'waiting'
    and waiting.run_id not in (select left_out from pg_catalog.unnest($2::uuid[]) as left_out)
    and waiting.since < pg_catalog.now() - interval '5 seconds'
    and (
        exists (
            select
            from pg_catalog.unnest(waiting.wait_any) as child (run_id)
            where exists (select from runledger.outcome where outcome.run_id = child.run_id offset 0)
        )
        or (
            pg_catalog.cardinality(waiting.wait_all) > 0
            and not exists (
                select
                from pg_catalog.unnest(waiting.wait_all) as child (run_id)
                where not exists (select from runledger.outcome where outcome.run_id = child.run_id offset 0)
            )
        )
    )
limit $1
