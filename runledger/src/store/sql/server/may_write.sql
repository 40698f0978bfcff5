-- may_write: returns whether this session can record runs after its current transaction.
-- in:    none
-- out:   is_writable (by the server and the session's default), is_permitted (by its role), role;
--        one row
-- locks: none
-- index: none
select
    not pg_catalog.pg_is_in_recovery() and pg_catalog.current_setting('default_transaction_read_only') = 'off' as is_writable,
    pg_catalog.has_schema_privilege('runledger', 'usage')
        and pg_catalog.has_table_privilege('runledger.step', 'insert')
        and pg_catalog.has_table_privilege('runledger.outcome', 'insert')
        and pg_catalog.has_table_privilege('runledger.lease', 'delete') as is_permitted,
    pg_catalog.convert_to(current_user::pg_catalog.text, 'UTF8') as role
