-- deadline_due: finds runs whose deadline is over, the longest overdue first.
-- in:    $1 how many, $2 runs to leave out
-- out:   run_id, deadline_ms (the time they had)
-- locks: none
-- index: deadline_due, run_pkey
select due.run_id, (extract(epoch from coalesce(runledger.duration_of(run.options, 'deadline_ms'), interval '0'))::numeric * 1000::numeric)::bigint as deadline_ms
from (
    select run_id, deadline_at
    from runledger.deadline
    where deadline_at <= pg_catalog.now() and run_id not in (select left_out from pg_catalog.unnest($2::uuid[]) as left_out)
    order by deadline_at
    limit $1
) as due
left join lateral (select options from runledger.run where run_id = due.run_id offset 0) as run on true
order by due.deadline_at
