-- Arrays of one length: $1 run ids, $2 fences, $3 states, $4 outputs, $5 errors. A row that is not returned had lost its lease.
with owned as materialized (
  select fence.tid, u.run_id, u.state, u.output, u.error, fence.attempt, fence.worker, fence.claimed_at
  from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[]) as u(run_id, token, state, output, error)
  cross join lateral (
    select lease.ctid as tid, lease.attempt, lease.worker, lease.claimed_at
    from hp.lease
    where lease.run_id = u.run_id and lease.token = u.token
    for update
  ) fence
), released as (
  delete from hp.lease where ctid = any (array(select tid from owned))
)
insert into hp.outcome (run_id, state, output, error, attempt, worker, started_at, finished_at)
select run_id, state, output::json, error::json, attempt, worker, claimed_at, now() from owned
returning run_id
