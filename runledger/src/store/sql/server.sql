-- server: what must be right before anything is written.
-- in:    none
-- out:   version_num, version, in_recovery, read_only, database; one row
-- locks: none
-- index: none
select
    current_setting('server_version_num')::integer as version_num,
    current_setting('server_version') as version,
    pg_is_in_recovery() as in_recovery,
    current_setting('default_transaction_read_only') = 'on' as read_only,
    current_database()::text as database
