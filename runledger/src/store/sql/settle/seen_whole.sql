-- seen_whole: fails if the snapshot of this transaction is older than the last addition to a graph.
--             The release of its nodes would miss that addition.
-- in:    $1 graph
-- out:   run_id; one row under repeatable read or serializable, if the graph has not changed since
--        the snapshot
-- locks: its row of `graph_counter`, which every addition writes; a serialization failure if it was
--        written since the snapshot
-- index: graph_counter_pkey
--
-- Runs after release.sql in the transaction of a body. No other transaction can have an old
-- snapshot.
select run_id
from runledger.graph_counter
where run_id = $1 and pg_catalog.current_setting('transaction_isolation') in ('repeatable read', 'serializable')
for update
