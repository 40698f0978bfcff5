-- cancel_below: the runs below some others that go on and whose cancel has not been asked for, parents first. One whose steps are being taken back cannot be
--        cancelled: how it ends is decided, and it may be parked for as long as nobody looks after it.
-- in:    $1 runs, $2 a reason for those that have left none
-- out:   run_id, reason (of the run above them)
-- locks: none
-- index: run_parent, outcome_pkey, cancel_pkey, undo_pkey. Runs that have ended are passed through: what they have started may go on.
with recursive below as (
    select child.run_id, 1 as depth, coalesce((select cancel.reason from runledger.cancel where cancel.run_id = above.run_id), $2) as reason
    from pg_catalog.unnest($1::uuid[]) as above (run_id)
    cross join lateral (select run_id from runledger.run where parent_id = above.run_id offset 0) as child
    union all
    select child.run_id, below.depth + 1, below.reason
    from below
    cross join lateral (select run_id from runledger.run where parent_id = below.run_id offset 0) as child
)
select run_id, reason
from below
where not exists (select from runledger.outcome where outcome.run_id = below.run_id offset 0)
    and not exists (select from runledger.cancel where cancel.run_id = below.run_id offset 0)
    and not exists (select from runledger.undo where undo.run_id = below.run_id offset 0)
order by depth, run_id
