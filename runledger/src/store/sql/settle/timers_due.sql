-- timers_due: finds waits whose limit is over, the longest overdue first.
-- in:    $1 how many, $2 runs to leave out
-- out:   run_id
-- locks: none
-- index: waiting_wake
select run_id
from runledger.waiting
where wake_at <= pg_catalog.now() and run_id not in (select left_out from pg_catalog.unnest($2::uuid[]) as left_out)
order by wake_at
limit $1
