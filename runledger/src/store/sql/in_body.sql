-- in_body: whether this session is in the transaction of a body, or has left it by a `COMMIT` or `ROLLBACK` of the body's own.
-- in:    $1 the mark that the transaction was begun with
-- out:   in_body, role (the session's current role, in UTF-8), encoding (in which the server reads what the client sends: that of the driver is UTF8)
-- locks: none
-- index: none
select
    coalesce(pg_catalog.current_setting('runledger.body', true), '') = $1 as in_body,
    pg_catalog.convert_to(current_user::pg_catalog.text, 'UTF8') as role,
    pg_catalog.pg_client_encoding()::text as encoding
