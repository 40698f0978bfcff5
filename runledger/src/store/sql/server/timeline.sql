-- timeline: identifies this server among servers that replace each other.
-- in:    none
-- out:   system (the database system), timeline (eight hexadecimal digits; null on a standby, which
--        writes nothing); one row
-- locks: none
-- index: none
select
    (select system_identifier::text from pg_catalog.pg_control_system()) as system,
    case when not pg_catalog.pg_is_in_recovery() then pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8) end as timeline
