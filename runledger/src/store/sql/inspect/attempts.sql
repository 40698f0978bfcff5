-- attempts: lists the attempts of a run, oldest first: failed attempts of the run and of its steps,
--           and the attempt that ended the run.
-- in:    $1 run
-- out:   attempt, step_key, worker_id, worker (its name), started_at, ended_at, error
-- locks: none
-- index: attempt_pkey, outcome_pkey, worker_pkey
select tried.attempt, tried.step_key, tried.worker_id, worker.name as worker, tried.started_at, tried.ended_at, tried.error
from (
    select attempt, step_key, worker_id, started_at, ended_at, error::text as error, claims
    from runledger.attempt
    where run_id = $1
    union all
    select attempt, '', worker_id, started_at, finished_at, error::text, 2147483647
    from runledger.outcome
    where run_id = $1 and worker_id is not null
) as tried
left join runledger.worker using (worker_id)
order by tried.claims, tried.ended_at, tried.attempt
