-- unconfigure: deletes the configuration of a job for one version of its configuration format.
-- in:    $1 job, $2 version
-- out:   job; one row if there was a configuration
-- locks: its row of `config` (deleted)
-- index: config_pkey
delete from runledger.config
where job = $1 and version = $2
returning job
