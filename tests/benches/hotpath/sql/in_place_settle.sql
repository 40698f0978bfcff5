update hp.run
set state = u.state, output = u.output::json, error = u.error::json, token = null, worker = null, finished_at = now()
from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[]) as u(run_id, token, state, output, error)
where run.run_id = u.run_id and run.token = u.token and run.state = 'running'
returning run.run_id
