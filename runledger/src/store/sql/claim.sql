-- claim: moves due runs that need no permit from `ready` to `lease`. A lane is a queue, a job and a priority. The claim takes the lanes in the order of
--        $4 to $8, and in each lane the runs that are due first.
--        Its end is parts/claimed.sql.
-- in:    $1 worker, $2 token, $3 how many, $4 queues, $5 jobs, $6 priorities, $7 after instants, $8 after ids: a lane and its position each, the
--        lane of the highest priority first
-- out:   run_id, job, tenant, queue, parent_id, is_node, is_linked (whether it was made of another), input, given (what a node is given by those that it needs),
--        slice (how often it has begun anew), options, priority, ready_at, attempt, crashes, claims,
--        claimed_at, cancel_requested, pause_requested, steps, undoing (the state in which it ends once what its steps did is taken back), step_failures,
--        earlier (for a run in at least two crashes: how many since it last progressed or failed in order, and the microseconds of its
--        longest unsuccessful attempt)
-- locks: the claimed rows of `ready` and no others, skipping those that others hold: the lock stands inside the lane's scan, which is lazy
-- index: ready_lane from the position of each lane: entries before it, living or dead, are never met
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
    -- Stays at the maximum of the column: the worker blocks the run, and the claim of the other runs succeeds.
    select run_id, $2::uuid, $1, least(attempt, 2147483646) + 1, crashes, least(claims, 2147483646) + 1, pg_catalog.now()
    from taken
)
