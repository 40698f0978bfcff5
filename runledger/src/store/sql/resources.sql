-- resources: the resources of which permits were said or taken, or that queued runs need, by name, a page.
-- in:    $1 the last one of the page before (empty: from the first), $2 how many, $3 how many waiting runs are counted at most
-- out:   name, permits, is_said, held (permits that runs have), waiting (runs in queues that need one, also those that are due later)
-- locks: none
-- index: resource_pkey, permit_pkey and ready_lane from $1, by skipping from one resource to the next; lease_pkey
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
        -- In the order of the index: nearly all runs need none, so the planner takes a resource for all of them, and would read the table.
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
