-- logged: reads a page of the log lines of a run.
-- in:    $1 run, $2 the first number, $3 the most lines
-- out:   number, step_key, attempt, level, target, line, logged_at; a row for each line, in order
-- locks: none
-- index: log_pkey
select number, step_key, attempt, level, target, line::text as line, logged_at
from runledger.log
where run_id = $1 and number >= $2
order by number
limit $3
