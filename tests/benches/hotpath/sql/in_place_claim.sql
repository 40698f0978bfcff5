with picked as materialized (
  select due.tid
  from unnest($1::text[], $2::text[], $3::int2[], $4::timestamptz[], $5::uuid[], $9::timestamptz[])
    as lane(queue, job, priority, after_at, after_id, until_at)
  cross join lateral (
    select run.ctid as tid
    from hp.run
    where run.state = 'queued'
      and run.queue = lane.queue and run.job = lane.job and run.priority = lane.priority
      and (run.ready_at, run.run_id) > (lane.after_at, lane.after_id)
      and run.ready_at <= least(now(), lane.until_at)
    order by run.ready_at, run.run_id
    limit $6
    for no key update skip locked
  ) due
  limit $6
)
update hp.run
set state = 'running', attempt = run.attempt + 1, token = $7, worker = $8, started_at = now()
from picked where run.ctid = picked.tid
returning run.run_id, run.queue, run.job, run.priority, run.ready_at, run.attempt, run.attempt > 1 as resumed,
  run.tenant, run.max_attempts, run.input::text as input
