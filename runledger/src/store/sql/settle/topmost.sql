-- topmost: returns the top of the chain of parents of a run, as far as those runs exist.
-- in:    $1 run, $2 the most levels to climb
-- out:   run_id; one row
-- locks: none
-- index: run_pkey, one probe per parent
with recursive above as (
    select $1::uuid as run_id, 0 as distance
    union all
    select parent.parent_id, above.distance + 1
    from above
    cross join lateral (select parent_id from runledger.run where run_id = above.run_id offset 0) as parent
    where parent.parent_id is not null and above.distance < $2
)
select run_id
from above
order by distance desc
limit 1
