-- Priorities that the claimer does not know yet: $1 queues, $2 jobs, $3 and $4 the open range between two known priorities.
-- No entry of a known lane lies in such a range, so the probe meets none of their dead entries.
select gap.queue, gap.job, found.priority
from unnest($1::text[], $2::text[], $3::int4[], $4::int4[]) as gap(queue, job, above, below)
cross join lateral (
  select ready.priority
  from hp.ready
  where ready.queue = gap.queue and ready.job = gap.job and ready.priority > gap.above and ready.priority < gap.below
  order by ready.priority desc
  limit 1
) found
