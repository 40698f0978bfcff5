-- release: counts the ends of nodes, and releases their dependents.
-- in:    $1 nodes that ended in this transaction; some may depend on others of them
-- out:   told (notifications); one row
-- locks: rows of `graph_counter`, in the order of their ids: these nodes, their dependents, and the
--        nodes that are cancelled with them; then the rows of the graphs, in that order; then
--        `ready`, `waiting` and `completion_watch`
-- index: run_pkey, outcome_pkey, edge_run, graph_counter_pkey, waiting_pkey, completion_watch_pkey
--
-- A node whose last dependency ended goes to its queue; a gate opens. A node that can no longer
-- succeed is cancelled, with its dependents. A graph whose last node ended goes to its queue, to be
-- concluded. A cancelled graph releases nothing.
-- If two nodes end at the same time, the second transaction waits for the first at the row of a
-- shared dependent. It then counts on from there. A transaction that ends an unclaimed node locks
-- the same rows first, with lock_counters.sql.
-- The intermediate sets may have thousands of rows, but the planner expects few and would join them
-- by nested loops. So this statement groups their union by id, or tests membership with
-- `(id in (…)) is true`. The planner cannot turn that test into a join, and answers it with a hash
-- table.
-- The updates of `graph_counter` find their rows by an array. A join would read the whole table
-- under a plan that was made while the table was nearly empty.
-- A dependent without a row of `graph_counter` has ended, and so have its own dependents, so the
-- walk stops there.
-- The delete from `waiting` may have waited for pin.sql, whose write is not in this statement's
-- snapshot. So the statement reads the job after it has locked the row.
with recursive ended as (
    select run.run_id, run.parent_id as graph_id, run.node, case when runledger.option_of(outcome.error, 'kind') = 'skipped' then 'skipped' else outcome.state end as state
    from pg_catalog.unnest($1::uuid[]) as item (run_id)
    cross join lateral (select run_id, parent_id, node from runledger.run where run_id = item.run_id offset 0) as run
    cross join lateral (select state, error from runledger.outcome where outcome.run_id = item.run_id offset 0) as outcome
    where run.node is not null and run.parent_id is not null
),
doomed as (
    select edge.dependant_id as run_id, ended.graph_id, ended.node as cause, ended.state as cause_state
    from ended
    cross join lateral (select dependant_id from runledger.edge where edge.run_id = ended.run_id and not on_terminal offset 0) as edge
    where ended.state <> 'completed' and exists (select from runledger.graph_counter where graph_counter.run_id = edge.dependant_id offset 0)
    union
    select edge.dependant_id, doomed.graph_id, doomed.cause, doomed.cause_state
    from doomed
    cross join lateral (select dependant_id from runledger.edge where edge.run_id = doomed.run_id and not on_terminal offset 0) as edge
    where exists (select from runledger.graph_counter where graph_counter.run_id = edge.dependant_id offset 0)
),
reached as (
    select run_id, graph_id, null as cause, null as cause_state from ended
    union all
    (select distinct on (run_id) run_id, graph_id, cause, cause_state from doomed where run_id not in (select run_id from ended) order by run_id, cause_state = 'skipped', cause)
),
needing as (
    select reached.run_id, reached.graph_id, edge.dependant_id
    from reached
    cross join lateral (select dependant_id from runledger.edge where edge.run_id = reached.run_id offset 0) as edge
),
locked as (
    select run_id, weight
    from runledger.graph_counter
    where run_id = any (array(select run_id from reached union select dependant_id from needing))
    order by run_id
    for update
),
finished as (
    select run_id, graph_id, cause, cause_state, coalesce(weight, 1) as weight
    from (
        select run_id, graph_id, cause, cause_state, pg_catalog.max(weight) over (partition by run_id) as weight
        from (
            select run_id, graph_id, cause, cause_state, null::integer as weight from reached
            union all
            select run_id, null, null, null, weight from locked
        ) as item
    ) as met
    where graph_id is not null and (cause is null or weight is not null)
),
unreachable as (
    select run_id, cause, cause_state
    from finished
    where cause is not null
),
left_over as (
    select run_id, graph_id, dependant_id
    from needing
    where (run_id in (select run_id from finished)) is true
        and (dependant_id in (select run_id from locked)) is true
        and dependant_id not in (select run_id from finished)
),
handed as (
    select
        run_id, graph_id, dependant_id,
        pg_catalog.max(weight) over (partition by run_id) as weight,
        pg_catalog.row_number() over (partition by run_id order by dependant_id nulls last) = 1 as is_heir
    from (
        select run_id, graph_id, null::uuid as dependant_id, weight from finished
        union all
        select run_id, graph_id, dependant_id, null from left_over
    ) as item
),
gain as (
    select dependant_id as run_id, pg_catalog.count(*)::integer as n_ended, coalesce(pg_catalog.sum(weight) filter (where is_heir), 0)::integer as weight
    from handed
    where dependant_id is not null
    group by dependant_id
),
gains as (
    select
        pg_catalog.jsonb_object_agg(run_id::text, n_ended) as n_ended,
        pg_catalog.jsonb_object_agg(run_id::text, weight) as weight
    from gain
),
counted as (
    update runledger.graph_counter
    set
        remaining = remaining - ((select n_ended from gains) ->> run_id::text)::integer,
        weight = weight + ((select weight from gains) ->> run_id::text)::integer
    where run_id = any (array(select run_id from gain))
    returning run_id, remaining
),
reported as (
    select graph_id as run_id, pg_catalog.sum(weight)::integer as weight
    from handed
    where dependant_id is null and is_heir
    group by graph_id
),
locked_graph as (
    select run_id, remaining
    from runledger.graph_counter
    where run_id = any (array(select run_id from reported))
    order by run_id
    for update
),
graph as (
    select run_id, pg_catalog.max(remaining) - pg_catalog.max(weight) as remaining
    from (
        select run_id, remaining, null::integer as weight from locked_graph
        union all
        select run_id, null, weight from reported
    ) as item
    group by run_id
    having pg_catalog.count(remaining) = 1
),
heard as (
    update runledger.graph_counter
    set remaining = graph.remaining
    from graph
    where graph_counter.run_id = any (array(select run_id from graph))
        and graph_counter.run_id = graph.run_id and graph.remaining > 0
),
forgotten as (
    delete from runledger.graph_counter
    where run_id = any (array(select run_id from finished union all select run_id from graph where remaining = 0))
),
due as (
    select run_id from counted where remaining = 0
    union all
    select run_id from graph where remaining = 0
),
ready_now as (
    select
        run.run_id, runledger.resource_of(run.options) as resource, run.queue, run.job, run.priority, run.node,
        greatest(run.start_at, pg_catalog.statement_timestamp() + coalesce(runledger.duration_of(run.options, 'delay_us'), interval '0')) as ready_at,
        runledger.duration_of(run.options, 'deadline_ms') as deadline
    from due
    cross join lateral (select * from runledger.run where run.run_id = due.run_id offset 0) as run
    where run.graph is not null or exists (select from runledger.waiting where waiting.run_id = run.parent_id offset 0)
),
limited as (
    insert into runledger.deadline (run_id, deadline_at)
    select run_id, ready_at + deadline
    from ready_now
    where deadline is not null and node is not null
    on conflict (run_id) do nothing
),
opened as (
    update runledger.waiting
    set since = pg_catalog.statement_timestamp()
    where run_id = any (array(select run_id from ready_now where job = 'runledger.gate'))
),
unparked as (
    delete from runledger.waiting
    where run_id = any (array(select run_id from ready_now where job <> 'runledger.gate')) and state = 'waiting'
    returning run_id, attempt, crashes, claims
),
queued as (
    insert into runledger.ready (run_id, resource, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select run_id, pg_catalog.max(resource), pg_catalog.max(queue), runledger.job_now(run_id), pg_catalog.max(priority), pg_catalog.max(ready_at), 'woken', pg_catalog.max(attempt), pg_catalog.max(crashes), pg_catalog.max(claims)
    from (
        select run_id, resource, queue, priority, ready_at, null::integer as attempt, null::integer as crashes, null::integer as claims from ready_now
        union all
        select run_id, null, null, null, null, attempt, crashes, claims from unparked
    ) as item
    group by run_id
    having pg_catalog.count(attempt) = 1
),
abandoned as (
    delete from runledger.waiting
    where run_id = any (array(select run_id from unreachable))
),
cancelled as (
    insert into runledger.outcome (run_id, state, error, attempt)
    select
        run_id, 'cancelled',
        runledger.unreachable(cause, cause_state),
        0
    from unreachable
),
unwatched as (
    delete from runledger.completion_watch
    where run_id = any (array(select run_id from unreachable))
    returning run_id
),
told as (
    select runledger.notify('runledger_ended', run_id::text)
    from unwatched
),
woken as (
    select runledger.notify('runledger_ready', '')
    where exists (select from unparked)
        and exists (select from runledger.worker where state = 'active' and sleeping)
)
select (select pg_catalog.count(*) from told) + (select pg_catalog.count(*) from woken) as told
