-- continue_run: continues a workflow as new with another input. It stays the same run, loses its
--               recorded steps, and gets all its attempts back.
-- in:    $1 run, $2 token, $3 input, $4 delay in microseconds
-- out:   run_id, told (notifications); one row if the fence holds
-- locks: the lease (deleted); the run's steps and their progress (deleted); its continuation
-- index: lease_pkey, step_pkey, progress_pkey, continuation_pkey, run_pkey
--
-- lock_lease.sql locks the lease before, so that no step is committed unseen.
with held as (
    delete from runledger.lease
    where run_id = $1 and token = $2
    returning run_id, claims
),
forgotten as (
    delete from runledger.step
    where run_id = (select run_id from held)
),
unsaid as (
    delete from runledger.progress
    where run_id = (select run_id from held) and step_key <> ''
),
continued as (
    insert into runledger.continuation as continuation (run_id, input, slice, claims)
    select run_id, $3::text::json, 1, claims
    from held
    on conflict (run_id) do update
    set input = excluded.input, slice = continuation.slice + 1, claims = excluded.claims, since = excluded.since
),
queued as (
    insert into runledger.ready (run_id, resource, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select
        held.run_id, runledger.resource_of(run.options), run.queue, run.job, run.priority, pg_catalog.statement_timestamp() + $4::bigint::float8 * interval '1 microsecond', 'continued', 0, 0, held.claims
    from held
    cross join lateral (select queue, job, priority, options from runledger.run where run_id = held.run_id offset 0) as run
),
told as (
    select runledger.notify('runledger_ready', '')
    where exists (select from held)
        and exists (select from runledger.worker where state = 'active' and sleeping)
)
select run_id, (select pg_catalog.count(*) from told) as told
from held
