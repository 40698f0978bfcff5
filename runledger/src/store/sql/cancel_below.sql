-- cancel_below: the live descendants of some runs without a cancel request, parents first. A compensating run cannot be cancelled:
--        its outcome is decided, and it may stay parked until an operator resumes it.
-- in:    $1 runs, $2 a reason for runs whose cancel request has none
-- out:   run_id, depth (below those runs), is_free (whether it is a node of a graph that has ended, and no worker holds it), reason (of the run above them)
-- locks: none
-- index: run_parent, outcome_pkey, lease_pkey, cancel_pkey, undo_pkey. The search continues below ended runs: their children may be live. It ends at twice the
--        depth that runs may have, for a run that a change from outside has put below itself.
with recursive below as (
    select child.run_id, above.run_id as parent_id, child.is_node, 1 as depth, coalesce((select cancel.reason from runledger.cancel where cancel.run_id = above.run_id), $2) as reason
    from pg_catalog.unnest($1::uuid[]) as above (run_id)
    cross join lateral (select run_id, node is not null as is_node from runledger.run where parent_id = above.run_id offset 0) as child
    union all
    select child.run_id, below.run_id, child.is_node, below.depth + 1, below.reason
    from below
    cross join lateral (select run_id, node is not null as is_node from runledger.run where parent_id = below.run_id offset 0) as child
    where below.depth < 200
)
select
    run_id, depth,
    is_node
        and exists (select from runledger.outcome where outcome.run_id = below.parent_id offset 0)
        and not exists (select from runledger.lease where lease.run_id = below.run_id offset 0) as is_free,
    reason
from below
where not exists (select from runledger.outcome where outcome.run_id = below.run_id offset 0)
    and not exists (select from runledger.cancel where cancel.run_id = below.run_id offset 0)
    and not exists (select from runledger.undo where undo.run_id = below.run_id offset 0)
order by depth, run_id
