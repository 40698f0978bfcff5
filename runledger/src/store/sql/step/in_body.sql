-- in_body: returns whether this session is still in the transaction of a body. A `COMMIT` or
--          `ROLLBACK` by the body ends that transaction.
-- in:    $1 the marker that the transaction began with
-- out:   in_body, role (the session's current role, in UTF-8), encoding (of the client; the driver
--        uses UTF8)
-- locks: none
-- index: none
select
    coalesce(pg_catalog.current_setting('runledger.body', true), '') = $1 as in_body,
    pg_catalog.convert_to(current_user::pg_catalog.text, 'UTF8') as role,
    pg_catalog.pg_client_encoding()::text as encoding
