-- resources: lists resources in pages, by name: those that an operator set, those with a permit
--            that was ever taken, and those that queued runs need.
-- in:    $1 the last name of the previous page (empty: first page), $2 how many, $3 the most
--        waiting runs to count
-- out:   name, permits, is_said (set by an operator), held (permits in use), waiting (queued runs,
--        due or not)
-- locks: none
-- index: resource_pkey, permit_pkey and ready_lane from $1, by skipping from one resource to the
--        next; lease_pkey
with recursive named as (
    (
        select least(
            (select name from runledger.resource where name > $1 order by name limit 1),
            (select resource from runledger.permit where resource > $1 order by resource limit 1),
            (select resource from runledger.ready where resource > $1 order by resource limit 1)
        ) as name
    )
    union all
    select least(
        (select resource.name from runledger.resource where resource.name > named.name order by resource.name limit 1),
        (select permit.resource from runledger.permit where permit.resource > named.name order by permit.resource limit 1),
        (select ready.resource from runledger.ready where ready.resource > named.name order by ready.resource limit 1)
    )
    from named
    where named.name is not null
),
page as (
    select name
    from named
    where name is not null
    limit $2
)
select
    page.name,
    coalesce(said.permits, 1) as permits,
    said.permits is not null as is_said,
    (
        select pg_catalog.count(*)
        from runledger.permit
        where permit.resource = page.name
            and exists (select from runledger.lease where lease.run_id = permit.run_id and lease.token = permit.token offset 0)
    ) as held,
    (
        -- Ordered as the index is. Nearly all runs need no resource, so the planner would expect
        -- one resource to match most rows, and read the whole table.
        select pg_catalog.count(*)
        from (
            select
            from runledger.ready
            where ready.resource = page.name
            order by ready.resource, ready.queue, ready.job, ready.priority, ready.ready_at, ready.run_id
            limit $3
        ) as counted
    ) as waiting
from page
left join lateral (select permits from runledger.resource where resource.name = page.name offset 0) as said on true
order by page.name
