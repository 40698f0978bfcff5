-- deadline_forget: drops deadlines that need no further action: the run has ended, does not exist,
--                  has a cancel request, or is compensating.
-- in:    $1 runs
-- out:   run_id
-- locks: the rows of `deadline` (deleted), skipping rows that others have locked
-- index: run_pkey, deadline_pkey, outcome_pkey, cancel_pkey, compensation_pkey
with over as (
    select ctid as spot
    from runledger.deadline
    where run_id = any ($1::uuid[])
        and (
            not exists (select from runledger.run where run.run_id = deadline.run_id offset 0)
            or exists (select from runledger.outcome where outcome.run_id = deadline.run_id offset 0)
            or exists (select from runledger.cancel where cancel.run_id = deadline.run_id offset 0)
            or exists (select from runledger.compensation where compensation.run_id = deadline.run_id offset 0)
        )
    for update skip locked
)
delete from runledger.deadline
where ctid = any (array(select spot from over))
returning run_id
