-- clear_overrides: forgets what somebody has said of a job: its own definition holds again.
-- in:    $1 job
-- out:   job; one row where something was said of it
-- locks: its row of `tuning` (deleted)
-- index: tuning_pkey
delete from runledger.tuning
where job = $1
returning job
