-- pause_forget: drops pause requests that came too late: the run has ended, or is already blocked
--               or paused.
-- in:    $1 runs
-- out:   run_id
-- locks: the rows of `pause` (deleted), skipping rows that others have locked
-- index: run_pkey, pause_pkey, outcome_pkey, waiting_pkey
with over as (
    select ctid as spot
    from runledger.pause
    where run_id = any ($1::uuid[])
        and (
            not exists (select from runledger.run where run.run_id = pause.run_id offset 0)
            or exists (select from runledger.outcome where outcome.run_id = pause.run_id offset 0)
            or exists (select from runledger.waiting where waiting.run_id = pause.run_id and waiting.state in ('blocked', 'paused') offset 0)
        )
    for update skip locked
)
delete from runledger.pause
where ctid = any (array(select spot from over))
returning run_id
