-- Arrays of one length: $1 run ids, $2 fences, $3 seconds from now. A row that is not returned had lost its lease.
with released as (
  delete from hp.lease
  using unnest($1::uuid[], $2::uuid[], $3::float8[]) as u(run_id, token, delay)
  where lease.run_id = any (array[u.run_id]) and lease.token = u.token
  returning lease.run_id, lease.attempt, lease.crashes, u.delay
)
insert into hp.ready (run_id, queue, job, priority, ready_at, attempt, crashes, resumed)
select released.run_id, run.queue, run.job, run.priority, now() + make_interval(secs => released.delay),
  released.attempt, released.crashes, true
from released
cross join lateral (
  select run.queue, run.job, run.priority from hp.run where run.run_id = released.run_id offset 0
) run
returning run_id
