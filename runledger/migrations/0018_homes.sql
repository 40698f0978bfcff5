-- Several homes. A dump that is loaded over a migrated database adds its own record of a home to the one that is there, and workers refuse the database until
-- it is adopted. Before, that record violated the primary key, and the runs of the dump were served. `only_one` is kept for older programs.
alter table runledger.installation
    drop constraint installation_pkey,
    add primary key (id);

-- Two adoptions at the same time leave one record.
create unique index installation_home on runledger.installation (database, (coalesce(system, '') collate "C"));
