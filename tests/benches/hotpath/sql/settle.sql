-- Arrays of one length: $1 run ids, $2 fences, $3 states, $4 outputs, $5 errors. A row that is not returned had lost its lease.
with released as (
  delete from hp.lease
  using unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[]) as u(run_id, token, state, output, error)
  where lease.run_id = any (array[u.run_id]) and lease.token = u.token
  returning lease.run_id, u.state, u.output, u.error, lease.attempt, lease.worker, lease.claimed_at
)
insert into hp.outcome (run_id, state, output, error, attempt, worker, started_at, finished_at)
select run_id, state, output::json, error::json, attempt, worker, claimed_at, now() from released
returning run_id
