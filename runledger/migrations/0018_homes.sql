-- A dump that is loaded over a migrated database brings the record of its own home. With that second record, workers refuse the database until it is
-- adopted. The former primary key refused the second record, so workers served the runs of the dump. `only_one` is kept for older programs.
alter table runledger.installation
    drop constraint installation_pkey,
    add primary key (id);

-- Two adoptions at the same time leave one record.
create unique index installation_home on runledger.installation (database, (coalesce(system, '') collate "C"));
