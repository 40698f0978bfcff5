-- Arrays of one length: $1 run ids, $2 jobs, $3 tenants, $4 queues, $5 priorities, $6 seconds from now, $7 inputs.
-- A run id that exists (a keyed enqueue repeated) adds nothing and is not returned. The instant is kept in `run`, because
-- joining the added rows with the arrays again would compare each with each.
with added as (
  insert into hp.run (run_id, job, tenant, queue, priority, start_at, input)
  select u.run_id, u.job, u.tenant, u.queue, u.priority, now() + make_interval(secs => u.delay), u.input::json
  from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::int2[], $6::float8[], $7::text[])
    as u(run_id, job, tenant, queue, priority, delay, input)
  on conflict (run_id) do nothing
  returning run_id, queue, job, priority, start_at
)
insert into hp.ready (run_id, queue, job, priority, ready_at)
select run_id, queue, job, priority, start_at from added
returning run_id
