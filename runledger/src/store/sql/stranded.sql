-- stranded: the net under waking: runs that wait for children of which one has ended, or for some that all have. Empty unless a wake-up was lost.
-- in:    $1 how many, $2 runs that are left out
-- out:   run_id (the run that waits)
-- locks: none
-- index: waiting_pkey, outcome_pkey
select waiting.run_id
from runledger.waiting
where waiting.state = 'waiting'
    and waiting.run_id <> all ($2::uuid[])
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
