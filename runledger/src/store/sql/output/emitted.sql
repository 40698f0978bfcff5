-- emitted: reads a page of the lines that a run has emitted.
-- in:    $1 run, $2 the first position, $3 the most lines
-- out:   position, step_key, number, value, emitted_at; a row for each line, in order
-- locks: none
-- index: output_pkey
select position, step_key, number, value::text as value, emitted_at
from runledger.output
where run_id = $1 and position >= $2
order by position
limit $3
