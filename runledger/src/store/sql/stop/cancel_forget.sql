-- cancel_forget: drops the cancel requests of runs that have ended, and of runs that do not exist.
-- in:    $1 runs without live descendants
-- out:   run_id
-- locks: the rows of `cancel` (deleted), skipping rows that others have locked
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
returning run_id
