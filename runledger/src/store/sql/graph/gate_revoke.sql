-- gate_revoke: revokes every earlier link to a gate by starting a new epoch.
-- in:    $1 gate
-- out:   run_id; one row if the gate exists
-- locks: its row of `link_epoch`; lock_runs.sql has locked the run, so a decision by link either
--        comes before or sees the new epoch
-- index: run_pkey, link_epoch_pkey
insert into runledger.link_epoch as known (run_id, epoch)
select run_id, pg_catalog.gen_random_uuid()
from runledger.run
where run_id = $1 and job = 'runledger.gate'
on conflict (run_id) do update
set epoch = excluded.epoch
returning run_id
