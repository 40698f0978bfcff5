-- gate_link: reads whether a gate exists, and the expiry and epoch of a link that is signed now.
-- in:    $1 gate, $2 lifetime in microseconds
-- out:   is_gate, expires_at, epoch (nil until the first revocation); one row
-- locks: none
-- index: run_pkey, link_epoch_pkey
select
    exists (select from runledger.run where run_id = $1 and job = 'runledger.gate') as is_gate,
    pg_catalog.statement_timestamp() + $2::float8 * interval '1 microsecond' as expires_at,
    coalesce((select epoch from runledger.link_epoch where run_id = $1), '00000000-0000-0000-0000-000000000000'::uuid) as epoch
