-- still_due: finds which of some waits are over.
-- in:    $1 runs
-- out:   run_id
-- locks: none
-- index: waiting_pkey
select run_id
from runledger.waiting
where run_id = any ($1::uuid[]) and wake_at <= pg_catalog.now()
