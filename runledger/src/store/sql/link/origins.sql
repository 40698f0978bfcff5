-- origins: reads runs that new runs will be created from, with their recorded steps in the form
--          that a claim returns.
-- in:    $1 run ids
-- out:   run_id, parent_id, slice (how often continued as new), parent_slice, state, steps (null:
--        none), is_compensated (compensates, or has compensated), is_sealed, in_graph (a graph or a
--        node), has_active_key; the runs that exist
-- locks: none
-- index: run_pkey, step_pkey, compensation_pkey, signal_pkey, progress_pkey, continuation_pkey, and
--        the primary keys under runledger.run_state
--
-- `steps` has an output only if its length is that of a run id. It has `true` for a compensation,
-- and only for steps that the run executed itself.
-- `is_sealed`: a payload that a new run would copy is encrypted.
select
    origin.run_id, origin.parent_id,
    coalesce((select slice from runledger.continuation where continuation.run_id = origin.run_id offset 0), 0) as slice,
    coalesce((select slice from runledger.continuation where continuation.run_id = origin.parent_id offset 0), 0) as parent_slice, origin.state,
    (
        select pg_catalog.json_agg(
            pg_catalog.json_build_array(
                step.key, step.ordinal, step.fingerprint,
                case when pg_catalog.octet_length(step.output::text) = 38 then step.output end,
                step.error, step.seen_len, step.seen, case when step.compensation is not null and step.claims > 0 then 'true'::json end
            )
        )::text
        from runledger.step
        where step.run_id = origin.run_id
    ) as steps,
    exists (select from runledger.compensation where compensation.run_id = origin.run_id offset 0) as is_compensated,
    exists (
        select
        from (
            select input as payload from runledger.run where run.run_id = origin.run_id
            union all
            select input from runledger.continuation where continuation.run_id = origin.run_id
            union all
            select coalesce(output, error) from runledger.step where step.run_id = origin.run_id
            union all
            select compensation from runledger.step where step.run_id = origin.run_id
            union all
            select payload from runledger.signal where signal.run_id = origin.run_id
            union all
            select value from runledger.progress where progress.run_id = origin.run_id
        ) as held
        where position('"$sealed"' in held.payload::text) > 0
        offset 0
    ) as is_sealed,
    origin.in_graph,
    (select options -> 'active_key'::text is not null from runledger.run where run.run_id = origin.run_id) as has_active_key
from pg_catalog.unnest($1::uuid[]) as wanted (run_id)
cross join lateral (select run_id, parent_id, state, graph is not null or node is not null as in_graph from runledger.run_state where run_id = wanted.run_id offset 0) as origin
