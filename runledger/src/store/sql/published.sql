-- published: the last value that a workflow has published under a name.
-- in:    $1 run, $2 the step key of the first one; those of later ones have a number behind it
-- out:   value; one row where there is one
-- locks: none
-- index: step_pkey
select output::text as value
from runledger.step
where run_id = $1 and (key = $2 or starts_with(key, $2 || '#')) and output is not null
order by ordinal desc
limit 1
