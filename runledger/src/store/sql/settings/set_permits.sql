-- set_permits: sets the number of permits of a resource, and wakes sleeping workers if queued runs
--              need one.
-- in:    $1 name, $2 permits (null: return to the default)
-- out:   before (the previous setting, if any), told (notifications); one row
-- locks: its row of `resource`
-- index: resource_pkey, ready_lane
with known as (
    select permits from runledger.resource where name = $1
),
forgotten as (
    delete from runledger.resource
    where name = $1 and $2::integer is null
),
said as (
    insert into runledger.resource as resource (name, permits)
    select $1, $2
    where $2::integer is not null
    on conflict (name) do update
    set permits = excluded.permits, changed_at = pg_catalog.clock_timestamp()
),
told as (
    select runledger.notify('runledger_ready', '')
    -- Ordered as in resources.sql.
    where (select true from runledger.ready where resource = $1 order by resource, queue, job, priority, ready_at, run_id limit 1)
        and exists (select from runledger.worker where state = 'active' and sleeping)
)
select (select permits from known) as before, (select pg_catalog.count(*) from told) as told
