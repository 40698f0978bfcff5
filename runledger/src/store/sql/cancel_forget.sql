-- cancel_forget: drops requests that have been carried out, or came too late, once nothing goes on below their runs.
-- in:    $1 runs
-- out:   none
-- locks: the rows of `cancel` (deleted)
-- index: run_pkey, cancel_pkey, outcome_pkey
delete from runledger.cancel
where run_id = any ($1::uuid[])
    and (
        exists (select from runledger.outcome where outcome.run_id = cancel.run_id offset 0)
        or not exists (select from runledger.run where run.run_id = cancel.run_id offset 0)
    )
