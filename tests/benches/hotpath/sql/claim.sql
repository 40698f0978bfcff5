-- Arrays, one element a lane, in the order in which the lanes are served: $1 queues, $2 jobs, $3 priorities, $4 and $5 the position
-- in each, $9 the instant up to which (infinity, or where the net has to stop). $6 how many runs, $7 the fence, $8 the worker.
-- Nested loop and limits are lazy: rows are locked one by one until there are enough, and no row is locked that is not claimed.
with picked as materialized (
  select due.tid
  from unnest($1::text[], $2::text[], $3::int2[], $4::timestamptz[], $5::uuid[], $9::timestamptz[])
    as lane(queue, job, priority, after_at, after_id, until_at)
  cross join lateral (
    select ready.ctid as tid
    from hp.ready
    where ready.queue = lane.queue and ready.job = lane.job and ready.priority = lane.priority
      and (ready.ready_at, ready.run_id) > (lane.after_at, lane.after_id)
      and ready.ready_at <= least(now(), lane.until_at)
    order by ready.ready_at, ready.run_id
    limit $6
    for update skip locked
  ) due
  limit $6
), taken as (
  delete from hp.ready using picked where ready.ctid = picked.tid
  returning ready.run_id, ready.queue, ready.job, ready.priority, ready.ready_at, ready.attempt, ready.crashes, ready.resumed
), leased as (
  insert into hp.lease (run_id, token, worker, attempt, crashes, claimed_at)
  select run_id, $7, $8, attempt + 1, crashes, now() from taken
)
select taken.run_id, taken.queue, taken.job, taken.priority, taken.ready_at, (taken.attempt + 1)::int2 as attempt, taken.resumed,
  run.tenant, run.max_attempts, run.input
from taken
cross join lateral (
  select run.tenant, run.max_attempts, run.input::text as input from hp.run where run.run_id = taken.run_id offset 0
) run
