-- cancel_below: the next children of some runs, in pages. A compensating run cannot be cancelled: its outcome is decided, and it may stay parked until an
--        operator resumes it.
-- in:    $1 runs, $2 the last child of each that was read before, or the nil UUID, $3 the reason for each whose own cancel request has none, $4 how many children of each
-- out:   place (of the run above in $1, from 1), run_id, goes_on (and has no cancel request), is_free (whether it is a node of a graph that has ended, and no
--        worker holds it), has_children (they may go on even if the child has ended), reason (of the run above)
-- locks: none
-- index: run_parent, outcome_pkey, lease_pkey, cancel_pkey, undo_pkey
select
    above.place, child.run_id,
    not exists (select from runledger.outcome where outcome.run_id = child.run_id offset 0)
        and not exists (select from runledger.cancel where cancel.run_id = child.run_id offset 0)
        and not exists (select from runledger.undo where undo.run_id = child.run_id offset 0) as goes_on,
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
