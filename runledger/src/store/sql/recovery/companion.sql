-- companion: returns whether one other run was in this crash and in each of the last $2 crashes on
--            trial, and may have caused them all.
-- in:    $1 run, $2 how many crashes on trial before this one
-- out:   has_companion
-- locks: none; the run's lease is locked before
-- index: lease_pkey, lease_worker, attempt_pkey, attempt_worker, worker_pkey, worker_session
--
-- The other run may be the cause if it was about as old each time. Now it may be at most 1.5 times
-- as old as in each earlier crash, plus 5 s.
-- Workers of one process share a session name. An attempt that ended after its worker's death has
-- crashed.
with earlier as (
    select holder.session_name, holder.heartbeat_at
    from runledger.attempt
    cross join lateral (
        select session_name, heartbeat_at
        from runledger.worker
        where worker.worker_id = attempt.worker_id and worker.trial = $1 and attempt.ended_at >= worker.died_at
        offset 0
    ) as holder
    where attempt.run_id = $1 and attempt.step_key = ''
    order by attempt.claims desc, attempt.attempt desc
    limit $2
),
present as (
    select holder.session_name, holder.heartbeat_at
    from (select worker_id from runledger.lease where run_id = $1) as lease
    cross join lateral (select session_name, heartbeat_at from runledger.worker where worker.worker_id = lease.worker_id offset 0) as holder
),
-- The workers of the process that died.
dead as (
    select worker.worker_id, worker.heartbeat_at, worker.died_at
    from present
    cross join lateral (
        select worker_id, heartbeat_at, died_at
        from runledger.worker
        where worker.session_name = present.session_name collate "C" and worker.died_at >= present.heartbeat_at
        offset 0
    ) as worker
),
-- Some of the other runs may be queued again. Their attempts show them.
other as (
    select lease.run_id, dead.heartbeat_at - lease.claimed_at as age
    from dead
    cross join lateral (select run_id, claimed_at from runledger.lease where lease.worker_id = dead.worker_id offset 0) as lease
    union all
    select attempt.run_id, dead.heartbeat_at - attempt.started_at as age
    from dead
    cross join lateral (
        select run_id, started_at
        from runledger.attempt
        where attempt.worker_id = dead.worker_id and step_key = '' and attempt.ended_at >= dead.died_at
        offset 0
    ) as attempt
)
select (select pg_catalog.count(*) from earlier) = $2
    and exists (
        select
        from other
        where run_id <> $1
            and not exists (
                select
                from earlier
                where not exists (
                    select
                    from (
                        select worker_id, heartbeat_at, died_at
                        from runledger.worker
                        where worker.session_name = earlier.session_name collate "C" and worker.died_at >= earlier.heartbeat_at
                        offset 0
                    ) as dead
                    cross join lateral (
                        select
                        from runledger.attempt
                        where attempt.worker_id = dead.worker_id and attempt.run_id = other.run_id
                            and step_key = '' and attempt.ended_at >= dead.died_at
                            -- The last heartbeat dates a crash only to within seconds.
                            and other.age <= (dead.heartbeat_at - attempt.started_at) * 1.5::float8 + interval '5 seconds'
                        offset 0
                    ) as beside
                    offset 0
                )
            )
    ) as has_companion
