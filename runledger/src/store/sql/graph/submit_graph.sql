-- submit_graph: creates a graph with all its nodes and edges, or adds nodes to a graph. Uses the
--               caller's transaction or its own.
-- in:    $1 graph, $2 name (null: an addition), $3 tenant, $4 queue, $5 priority, $6 request (of
--        the graph or the addition), $7 options, $8 idempotency key (or the key of the addition);
--        of nodes: $9 run ids, $10 names, $11 jobs, $12 tenants (null: the graph's), $13 queues,
--        $14 priorities, $15 inputs, $16 options, $17 delays in microseconds, $18 instants,
--        $19 numbers of live dependencies, $20 nodes because of which they cannot succeed (null:
--        they can), $21 how those ended;
--        of edges: $22 dependents, $23 dependencies, $24 whether any outcome suffices,
--        $25 parameters that the dependency fills (array literals);
--        $26 the graph that this one recovers, $27 the parent workflow, whose tenant the graph gets
--        (null: none);
--        of gates: $28 the values that they accept
--        The arrays of nodes have one length; an array may be empty if all its values are null
-- out:   created (the graph is new), isolation (of the transaction), told (notifications); one row
-- locks: none for a graph, but an equal key waits for the other transaction; for an addition the
--        graph's row of `graph_counter`
-- index: run_pkey, graph_counter_pkey
--
-- A node without live dependencies goes to its queue, and a node with some waits. A node that
-- cannot succeed any more is cancelled. An addition runs in the transaction of append_lock.sql.
-- Writes nothing if the graph exists. A graph with a key is written only under read committed. A
-- stricter level could give a wrong answer.
with made as (
    insert into runledger.run (run_id, job, tenant, queue, priority, input, options, idempotency_key, graph, origin_id, parent_id, depth, start_at)
    select
        $1, 'runledger.graph', coalesce(parent.tenant, $3), $4, $5, $6::text::json, $7::text::json, $8, $2, $26, parent.run_id,
        case when parent.run_id is not null then coalesce(parent.depth, 0) + 1 end, pg_catalog.statement_timestamp()
    from (select) as one
    left join lateral (select run_id, tenant, depth from runledger.run where run_id = $27 offset 0) as parent on true
    where $2::text is not null and ($8::text is null or pg_catalog.current_setting('transaction_isolation') in ('read committed', 'read uncommitted'))
    on conflict (run_id) do nothing
    returning run_id, tenant, depth, options, start_at
),
whole as (
    select run_id, tenant, depth
    from made
    union all
    select run_id, tenant, depth
    from runledger.run
    where run_id = $1 and $2::text is null
),
node as (
    select
        item.*, whole.run_id as graph_id, coalesce(item.tenant, whole.tenant) as its_tenant, coalesce(whole.depth, 0) + 1 as its_depth, needs = 0 and cause is null as is_free
    from whole
    cross join unnest(
        $9::uuid[], $10::text[], $11::text[], $12::text[], $13::text[], $14::smallint[], $15::text[], $16::text[], $17::bigint[], $18::timestamptz[],
        $19::integer[], $20::text[], $21::text[]
    ) as item (run_id, name, job, tenant, queue, priority, input, options, delay_us, instant, needs, cause, cause_state)
),
written as (
    insert into runledger.run (run_id, job, tenant, queue, priority, input, options, parent_id, depth, node, start_at)
    select run_id, job, its_tenant, queue, priority, input::json, options::json, graph_id, its_depth, name, coalesce(instant, pg_catalog.statement_timestamp())
    from node
),
typed as (
    insert into runledger.gate (run_id, accepts)
    select gate.run_id, gate.accepts::json
    from whole
    cross join unnest($9::uuid[], $28::text[]) as gate (run_id, accepts)
    where gate.accepts is not null
),
wired as (
    insert into runledger.edge (dependant_id, run_id, on_terminal, parameters)
    select edge.dependant_id, edge.run_id, edge.on_terminal, edge.parameters::text[]
    from whole
    cross join unnest($22::uuid[], $23::uuid[], $24::boolean[], $25::text[]) as edge (dependant_id, run_id, on_terminal, parameters)
),
counted as (
    insert into runledger.graph_counter (run_id, remaining, weight)
    select run_id, pg_catalog.cardinality($9::uuid[]), 1
    from made
    union all
    select run_id, needs, 1
    from node
    where needs > 0
),
grown as (
    update runledger.graph_counter
    set remaining = graph_counter.remaining + (select pg_catalog.count(*) from node where cause is null)::integer
    where run_id = $1 and $2::text is null
),
added as (
    insert into runledger.addition (graph_id, key, request)
    select $1, $8, $6::text::json
    where $2::text is null
),
parked as (
    insert into runledger.waiting (run_id, state, wait_any, wait_all, wait_signals, attempt, crashes, claims, since)
    select run_id, 'waiting', '{}', '{}', '{}', 0, 0, 0, pg_catalog.statement_timestamp()
    from (select run_id from made union all select run_id from node where needs > 0 or (is_free and job = 'runledger.gate')) as parked
),
cancelled as (
    insert into runledger.outcome (run_id, state, error, attempt)
    select run_id, 'cancelled', runledger.unreachable(cause, cause_state), 0
    from node
    where cause is not null
),
queued as (
    insert into runledger.ready (run_id, resource, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select
        run_id, runledger.resource_of(options::json), queue, job, priority,
        coalesce(instant, pg_catalog.statement_timestamp() + coalesce(delay_us, 0)::float8 * interval '1 microsecond'), 'enqueued', 0, 0, 0
    from node
    where is_free and job <> 'runledger.gate'
),
limited as (
    insert into runledger.deadline (run_id, deadline_at)
    select run_id, start_at + (options ->> 'deadline_ms'::text)::float8 * interval '1 millisecond'
    from made
    where options ->> 'deadline_ms'::text is not null
    union all
    select
        run_id,
        coalesce(instant, pg_catalog.statement_timestamp() + coalesce(delay_us, 0)::float8 * interval '1 microsecond')
            + (options::json ->> 'deadline_ms'::text)::float8 * interval '1 millisecond'
    from node
    where is_free and options::json ->> 'deadline_ms'::text is not null
),
told as (
    select runledger.notify('runledger_ready', worker_id::text)
    from runledger.worker
    where state = 'active' and sleeping
        and exists (select from node where is_free and node.queue = any (worker.queues) and node.job = any (worker.jobs))
    order by pg_catalog.random()
    limit (select pg_catalog.count(*) + 1 from node where is_free)
)
select
    exists (select from made) as created,
    pg_catalog.current_setting('transaction_isolation') as isolation,
    (select pg_catalog.count(*) from told) as told
