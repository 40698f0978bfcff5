-- deadline_set: stores the deadlines of runs that were enqueued with one, in the transaction that
--               enqueued them.
-- in:    $1 run ids
-- out:   none
-- locks: none
-- index: run_pkey, deadline_pkey
insert into runledger.deadline (run_id, deadline_at)
select run.run_id, run.start_at + (run.options ->> 'deadline_ms'::text)::float8 * interval '1 millisecond'
from pg_catalog.unnest($1::uuid[]) as item (run_id)
cross join lateral (select * from runledger.run where run_id = item.run_id offset 0) as run
where run.options ->> 'deadline_ms'::text is not null
on conflict (run_id) do nothing
