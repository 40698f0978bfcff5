-- published: the last value that a workflow has published under a name.
-- in:    $1 run, $2 the name of the steps that publish it; their keys have a branch before it and a number behind it
-- out:   key, value; one row where there is one
-- locks: none
-- index: step_pkey
select key, output::text as value
from runledger.step
where run_id = $1 and pg_catalog.regexp_replace(key, '^.*/|#[0-9]+$', '', 'g') = $2 and output is not null
order by recorded_at desc, seen_len desc, ordinal desc
limit 1
