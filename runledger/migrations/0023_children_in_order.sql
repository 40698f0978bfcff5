-- The children of a run in a fixed order, so that a cancel can read them in pages. The index has the id as bytes: with the
-- statistics of an empty table, the planner used an index with the id itself to find single runs, and read all of it.
create index run_children on runledger.run (parent_id, pg_catalog.uuid_send(run_id)) where parent_id is not null;
-- Readers wait only from here on.
drop index runledger.run_parent;
alter index runledger.run_children rename to run_parent;
