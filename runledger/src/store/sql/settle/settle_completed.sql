-- settle_completed: ends attempts that all completed, as nearly all do. A batch with any other
--                   verdict uses settle.
-- in:    $1 run ids, $2 tokens, $3 outputs
-- out:   held, told (notifications); one row: `held` has the positions, from 1, of the items whose
--        fence holds
-- locks: the leases (deleted). Before it, lock_runs.sql locks the parents of these runs, if any
-- index: lease_pkey, completion_watch_pkey
with held as (
    delete from runledger.lease
    using (
        select item.run_id, item.output, item.position, spot
        from unnest($1::uuid[], $2::uuid[], $3::text[]) with ordinality as item (run_id, token, output, position)
        cross join lateral (select ctid as spot from runledger.lease where run_id = item.run_id and token = item.token offset 0) as found
    ) as item
    where lease.ctid = item.spot
    returning item.run_id, item.output, item.position, lease.attempt, lease.worker_id, lease.claimed_at
),
ended as (
    insert into runledger.outcome (run_id, state, output, attempt, worker_id, started_at)
    select run_id, 'completed', output::json, attempt, worker_id, claimed_at
    from held
),
unwatched as (
    delete from runledger.completion_watch
    where run_id = any (array(select run_id from held))
    returning run_id
),
told as (
    select runledger.notify('runledger_ended', run_id::text)
    from unwatched
)
select pg_catalog.array_agg(position) as held, (select pg_catalog.count(*) from told) as told
from held
