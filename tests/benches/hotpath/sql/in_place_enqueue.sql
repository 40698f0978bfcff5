insert into hp.run (run_id, job, tenant, queue, priority, ready_at, input)
select u.run_id, u.job, u.tenant, u.queue, u.priority, now() + make_interval(secs => u.delay), u.input::json
from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::int2[], $6::float8[], $7::text[])
  as u(run_id, job, tenant, queue, priority, delay, input)
on conflict (run_id) do nothing
returning run_id
