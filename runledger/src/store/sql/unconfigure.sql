-- unconfigure: forgets the configuration of a job in one version of its form.
-- in:    $1 job, $2 version
-- out:   job; one row where one was stored
-- locks: its row of `config` (deleted)
-- index: config_pkey
delete from runledger.config
where job = $1 and version = $2
returning job
