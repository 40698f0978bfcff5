-- Isolates runs: a crash counts against one run only, and an unreadable row affects only its own run. See docs/decisions/0018-crash-suspects.md.

-- The run that the worker executes with no other suspect in its process. If the process crashes now, the crash counts against this run only. The value stays in
-- the row of a dead worker.
alter table runledger.worker add column trial uuid;

-- Functions that read any options without an error, because a statement about many runs must not fail on one row. An unreadable option counts as absent, and
-- the worker that claims the run blocks it with a reason.

-- An option as text. Null if it is absent or if the JSON is unreadable (`\u0000`, a lone surrogate).
create function runledger.option_of(options json, name text) returns text
language plpgsql immutable strict
set search_path = pg_catalog, pg_temp
as $$
begin
    return options ->> name;
exception
    when others then
        return null;
end
$$;

-- A duration option; its name ends in the unit. Null if it is absent or not an integer of 64 bits. Clamped to 0 to 100 years.
create function runledger.duration_of(options json, name text) returns interval
language plpgsql immutable strict
set search_path = pg_catalog, pg_temp
as $$
declare
    -- Microseconds or milliseconds, because adding months would depend on the calendar.
    unit constant interval := case right(name, 3) when '_us' then interval '1 microsecond' else interval '1 millisecond' end;
    longest constant bigint := case right(name, 3) when '_us' then 3153600000000000 else 3153600000000 end;
    duration bigint;
begin
    -- A block with an exception handler is a subtransaction, and most options have no duration.
    if strpos(options::text, '"' || name || '"') = 0 then
        return null;
    end if;
    begin
        duration := (options ->> name)::bigint;
    exception
        when others then
            return null;
    end;
    -- `greatest` and `least` ignore nulls, and would make 0 of an absent duration.
    return case when duration < 0 then 0 when duration > longest then longest else duration end * unit;
end
$$;

-- Returns the same value as before for every row that a client wrote. A run without a resource costs no call.
create or replace function runledger.resource_of(options json) returns text
language sql immutable
as $$
    select case
        when $1 is null or pg_catalog.strpos($1::pg_catalog.text, '"resource"') operator(pg_catalog.=) 0 then ''
        else coalesce(runledger.option_of($1, 'resource'), '')
    end;
$$;
