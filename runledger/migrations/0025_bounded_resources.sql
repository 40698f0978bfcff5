-- A resource of more than 256 bytes counts as absent, as every option that cannot be read: the index of the queue could not store it, so the statements that
-- wake a run, release it or give it back failed, and with them the settlements of other runs. The worker that claims the run blocks it with a reason.
create or replace function runledger.resource_of(options json) returns text
language sql immutable
as $$
    select case
        when $1 is null or pg_catalog.strpos($1::pg_catalog.text, '"resource"') operator(pg_catalog.=) 0 then ''
        when pg_catalog.octet_length(runledger.option_of($1, 'resource')) operator(pg_catalog.>) 256 then ''
        else coalesce(runledger.option_of($1, 'resource'), '')
    end;
$$;
