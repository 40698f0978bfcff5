-- cancel_below: reads the next children of some runs, in pages.
-- in:    $1 runs, $2 the last child of each that was already read, or the nil UUID, $3 the reason
--        for each run whose own cancel request has none, $4 the most children of each
-- out:   place (of the parent in $1, from 1), run_id, goes_on, is_free, has_children, reason (of
--        the parent)
-- locks: none
-- index: run_parent, outcome_pkey, lease_pkey, cancel_pkey, compensation_pkey
--
-- `goes_on`: the child is live, has no cancel request and is not compensating. The outcome of a
-- compensating run is already decided, and the run may stay blocked or paused until an operator
-- resumes it.
-- `is_free`: the child is a node of a graph that has ended, and no worker holds it. `has_children`
-- matters even if the child has ended, because its own children may be live.
select
    above.place, child.run_id,
    not exists (select from runledger.outcome where outcome.run_id = child.run_id offset 0)
        and not exists (select from runledger.cancel where cancel.run_id = child.run_id offset 0)
        and not exists (select from runledger.compensation where compensation.run_id = child.run_id offset 0) as goes_on,
    child.is_node and above.has_ended
        and not exists (select from runledger.lease where lease.run_id = child.run_id offset 0) as is_free,
    exists (select from runledger.run where run.parent_id = child.run_id offset 0) as has_children,
    above.reason
from (
    select
        item.run_id, item.last, item.place,
        exists (select from runledger.outcome where outcome.run_id = item.run_id offset 0) as has_ended,
        coalesce((select cancel.reason from runledger.cancel where cancel.run_id = item.run_id), item.reason) as reason
    from unnest($1::uuid[], $2::uuid[], $3::text[]) with ordinality as item (run_id, last, reason, place)
    offset 0
) as above
cross join lateral (
    select run_id, node is not null as is_node
    from runledger.run
    where parent_id = above.run_id and pg_catalog.uuid_send(run_id) > pg_catalog.uuid_send(above.last)
    order by pg_catalog.uuid_send(run_id)
    limit $4
) as child
