-- cancel_forget: drops requests for runs that have ended, and for runs that are not there.
-- in:    $1 runs below which nothing goes on
-- out:   none
-- locks: the rows of `cancel` (deleted), skipping those that others hold
-- index: run_pkey, cancel_pkey, outcome_pkey
with over as (
    select ctid as spot
    from runledger.cancel
    where run_id = any ($1::uuid[])
        and (
            exists (select from runledger.outcome where outcome.run_id = cancel.run_id offset 0)
            or not exists (select from runledger.run where run.run_id = cancel.run_id offset 0)
        )
    for update skip locked
)
delete from runledger.cancel
where ctid = any (array(select spot from over))
