-- stranded: the net under waking: runs that wait for children of which one has ended, or for some that all have. Empty unless a wake-up was lost.
-- in:    $1 how many, $2 parents that are left out
-- out:   run_id (an ended child), parent_id (the run that waits for it)
-- locks: none
-- index: waiting_pkey, outcome_pkey
select child.run_id, waiting.run_id as parent_id
from runledger.waiting
cross join lateral (
    select run_id
    from pg_catalog.unnest(waiting.wait_any) as child (run_id)
    where exists (select from runledger.outcome where outcome.run_id = child.run_id offset 0)
    union all
    select waiting.wait_all[1]
    where pg_catalog.cardinality(waiting.wait_all) > 0
        and not exists (
            select
            from pg_catalog.unnest(waiting.wait_all) as child (run_id)
            where not exists (select from runledger.outcome where outcome.run_id = child.run_id offset 0)
        )
) as child
where waiting.state = 'waiting' and waiting.run_id <> all ($2::uuid[]) and waiting.since < pg_catalog.now() - interval '5 seconds'
limit $1
