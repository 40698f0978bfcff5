-- configure: stores the configuration of a job for one version of its configuration format.
--            Replaces the previous one.
-- in:    $1 job, $2 version, $3 configuration
-- out:   job; one row if the stored text has changed
-- locks: its row of `config`
-- index: config_pkey
insert into runledger.config as known (job, version, config)
values ($1, $2, $3::text::json)
on conflict (job, version) do update
set config = excluded.config, changed_at = pg_catalog.clock_timestamp()
where known.config::text <> excluded.config::text
returning job
