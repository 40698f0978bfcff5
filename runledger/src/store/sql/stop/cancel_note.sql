-- cancel_note: stores a request to cancel a run that another transaction keeps locked, or whose
--              cancel has failed.
-- in:    $1 run, $2 reason
-- out:   told (notifications); one row
-- locks: none
-- index: run_pkey, outcome_pkey, compensation_pkey, cancel_pkey, lease_pkey
--
-- The worker that holds or claims the run sees the request. Maintenance cancels a run that no
-- worker claims. If the other transaction is a cancel that starts a compensation, the request comes
-- too late: after the compensation it cancels only the descendants.
with asked as (
    insert into runledger.cancel (run_id, reason)
    select run.run_id, $2
    from runledger.run
    where run.run_id = $1
        and not exists (select from runledger.outcome where outcome.run_id = run.run_id offset 0)
        and not exists (select from runledger.compensation where compensation.run_id = run.run_id offset 0)
    on conflict (run_id) do nothing
    returning run_id
),
told as (
    select runledger.notify('runledger_cancel', run_id::text)
    from asked
    where exists (select from runledger.lease where lease.run_id = asked.run_id offset 0)
)
select pg_catalog.count(*) as told
from told
