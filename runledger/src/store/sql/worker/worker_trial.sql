-- worker_trial: records the run that a worker has on trial, or ends its trial.
-- in:    $1 worker, $2 run, or null to end the trial
-- out:   none
-- locks: the worker's row
-- index: worker_pkey
update runledger.worker
set trial = $2::uuid
where worker_id = $1 and state <> 'dead'
