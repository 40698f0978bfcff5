-- published: reads the last value that a workflow published under a name.
-- in:    $1 run, $2 the name of the steps that publish it
-- out:   key, value; one row if there is a value
-- locks: none
-- index: step_pkey
--
-- The key of such a step has a branch before the name and a number after it.
select key, output::text as value
from runledger.step
where run_id = $1 and pg_catalog.regexp_replace(key, '^.*/|#[0-9]+$', '', 'g') = $2 and output is not null
order by recorded_at desc, seen_len desc, ordinal desc
limit 1
