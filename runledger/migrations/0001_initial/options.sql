-- Reads single options of a run. A statement about many runs must not fail because one of them has
-- unreadable options: such an option counts as absent, and the worker that claims the run blocks
-- it with a reason. See docs/decisions/0018-crash-suspects.md.

-- An option as text. Null if it is absent or not readable (`\u0000`, a lone surrogate).
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

-- A duration. Its name ends in the unit. Null if it is absent or no integer of 64 bits. Clamped to
-- 0 to 100 years.
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

-- The resource that a run needs, or ''. A resource of more than 256 bytes counts as absent: the
-- index of `ready` could not store it. The planner inlines this function only without a
-- `search_path` of its own, so every name is qualified.
create function runledger.resource_of(options json) returns text
language sql immutable
as $$
    select case
        when $1 is null or pg_catalog.strpos($1::pg_catalog.text, '"resource"') operator(pg_catalog.=) 0 then ''
        when pg_catalog.octet_length(runledger.option_of($1, 'resource')) operator(pg_catalog.>) 256 then ''
        else coalesce(runledger.option_of($1, 'resource'), '')
    end;
$$;
