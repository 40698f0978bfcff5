-- cancel_forget: drops requests for runs that have ended, where nothing goes on below them, and for runs that are not there.
-- in:    $1 runs below which nothing goes on, $2 runs that were locked: they may have ended since, with runs below them
-- out:   none
-- locks: the rows of `cancel` (deleted)
-- index: run_pkey, cancel_pkey, outcome_pkey
delete from runledger.cancel
where run_id = any ($1::uuid[] operator(pg_catalog.||) $2::uuid[])
    and (
        (run_id = any ($1::uuid[]) and exists (select from runledger.outcome where outcome.run_id = cancel.run_id offset 0))
        or not exists (select from runledger.run where run.run_id = cancel.run_id offset 0)
    )
