-- seen_whole: refuses to go on with a snapshot from before the last change of a graph: what was added to it since is not in the snapshot, and would be passed over
--             by the release of its nodes. Behind release.sql in the transaction of a body, which alone may have an old one.
-- in:    $1 graph
-- out:   run_id; a row where the snapshot is older than this statement, and the graph has not changed since
-- locks: its row of `pending`, which every addition writes; a serialization failure where it was written since
-- index: pending_pkey
select run_id
from runledger.pending
where run_id = $1 and pg_catalog.current_setting('transaction_isolation') in ('repeatable read', 'serializable')
for update
