-- claim: moves due runs that need no permit from `ready` to `lease`.
-- in:    $1 worker, $2 token, $3 how many; $4 queues, $5 jobs, $6 priorities, $7 instants and
--        $8 ids: lanes with their cursors, the highest priority first
-- out:   run_id, job, tenant, queue, parent_id, is_node, is_linked (created from another run),
--        input, given (outcomes of a node's dependencies), slice (how often continued as new),
--        options, priority, ready_at, attempt, crashes, claims, claimed_at, cancel_requested,
--        pause_requested, steps, compensating (the state after compensation), step_failures,
--        earlier
-- locks: the claimed rows of `ready` and no others, skipping rows that others have locked. The lock
--        is inside the lane's scan, which is lazy
-- index: ready_lane, from the cursor of each lane: the scan never reads entries before the cursor,
--        live or dead
--
-- A lane is a queue, a job and a priority. The claim takes the lanes in the order of $4 to $8, and
-- within a lane the run that has been due longest.
-- `earlier` is set for a run with at least two crashes. Its first value counts the crashes since
-- the run last recorded a step, continued as new, or failed without a crash. Its second value is
-- the duration of the longest unsuccessful attempt, in microseconds.
-- The statement ends with parts/claimed.sql, or with parts/claimed_apart.sql, which leaves out the
-- content.
with lane as (
    select *
    from unnest($4::text[], $5::text[], $6::smallint[], $7::timestamptz[], $8::uuid[]) as lane (queue, job, priority, after_at, after_id)
    where exists (select from runledger.worker where worker_id = $1 and state = 'active')
),
candidate as (
    select due.spot
    from lane
    cross join lateral (
        select ready.ctid as spot
        from runledger.ready
        where ready.resource = ''
            and ready.queue = lane.queue
            and ready.job = lane.job
            and ready.priority = lane.priority
            and (ready.ready_at, ready.run_id) > (lane.after_at, lane.after_id)
            and ready.ready_at <= pg_catalog.now()
        order by ready.ready_at, ready.run_id
        limit $3
        for update skip locked
    ) as due
    limit $3
),
taken as (
    delete from runledger.ready
    where ctid = any (array(select spot from candidate))
    returning run_id, priority, ready_at, attempt, crashes, claims
),
leased as (
    insert into runledger.lease (run_id, token, worker_id, attempt, crashes, claims, claimed_at)
    -- Clamped to the column maximum: the worker blocks this run, and the other claims succeed.
    select run_id, $2::uuid, $1, least(attempt, 2147483646) + 1, crashes, least(claims, 2147483646) + 1, pg_catalog.now()
    from taken
)
