-- The children of a run in a fixed order, so that a cancel can read them in pages. The id is in it as bytes: a planner with
-- the statistics of an empty table uses an index with the id itself to find a run by its id, and reads all of that index.
drop index runledger.run_parent;
create index run_parent on runledger.run (parent_id, uuid_send(run_id)) where parent_id is not null;
