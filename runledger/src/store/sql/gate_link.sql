-- gate_link: whether there is such a gate, and when a link to it is over that is made now.
-- in:    $1 gate, $2 for how long, in microseconds
-- out:   is_gate, expires_at; one row
-- locks: none
-- index: run_pkey
select
    exists (select from runledger.run where run_id = $1 and job = 'runledger.gate') as is_gate,
    pg_catalog.statement_timestamp() + $2::float8 * interval '1 microsecond' as expires_at
