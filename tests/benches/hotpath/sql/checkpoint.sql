-- Arrays of one length: $1 run ids, $2 fences, $3 step keys, $4 outputs, $5 fingerprints.
with owned as materialized (
  select u.run_id, u.key, u.output, u.fingerprint, fence.attempt
  from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::int8[]) as u(run_id, token, key, output, fingerprint)
  cross join lateral (
    select lease.attempt from hp.lease where lease.run_id = u.run_id and lease.token = u.token
    for key share
  ) fence
)
insert into hp.step (run_id, key, output, fingerprint, attempt, recorded_at)
select run_id, key, output::json, fingerprint, attempt, now() from owned
on conflict (run_id, key) do nothing
returning run_id, key
