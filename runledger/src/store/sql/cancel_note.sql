-- cancel_note: notes that runs are to be cancelled which other transactions keep locked. Whoever claims or holds one sees it; maintenance cancels the others
--        once they are free. If the other transaction is a cancel that starts an undo, the request comes too late: it cancels only the
--        runs below, once the undo has ended.
-- in:    $1 runs, $2 reasons; arrays
-- out:   told; one row
-- locks: none
-- index: run_pkey, outcome_pkey, undo_pkey, cancel_pkey, lease_pkey
with asked as (
    insert into runledger.cancel (run_id, reason)
    select item.run_id, item.reason
    from unnest($1::uuid[], $2::text[]) as item (run_id, reason)
    where exists (select from runledger.run where run.run_id = item.run_id offset 0)
        and not exists (select from runledger.outcome where outcome.run_id = item.run_id offset 0)
        and not exists (select from runledger.undo where undo.run_id = item.run_id offset 0)
    order by item.run_id
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
