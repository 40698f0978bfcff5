-- gate_revoke: revokes every link to a gate that was signed before, by a new epoch.
-- in:    $1 gate
-- out:   run_id; one row where there is such a gate
-- locks: its row of `link_epoch`; the run is locked before, by lock_runs.sql: a decision by a link comes before this, or finds the new epoch
-- index: run_pkey, link_epoch_pkey
insert into runledger.link_epoch as known (run_id, epoch)
select run_id, pg_catalog.gen_random_uuid()
from runledger.run
where run_id = $1 and job = 'runledger.gate'
on conflict (run_id) do update
set epoch = excluded.epoch
returning run_id
