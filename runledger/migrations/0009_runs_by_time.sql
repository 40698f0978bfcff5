-- Lists of runs: those of one tenant, the latest first. See docs/decisions/0015-lists-of-runs.md for what it costs.

-- The id as bytes: an index that has the id itself is taken for a way to find a run by it, and read from end to end, where the statistics are those of an empty table.
create index run_listed on runledger.run (tenant collate "C", created_at, uuid_send(run_id));
