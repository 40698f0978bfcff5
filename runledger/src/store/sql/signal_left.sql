-- signal_left: the first signal of a name that no step of the run has taken.
-- in:    $1 run, $2 name
-- out:   number, idempotency_key, payload; no row where none is left
-- locks: none: signals come from anywhere, but only the attempt that holds the run takes them
-- index: signal_left
select number, idempotency_key, payload::text as payload
from runledger.signal
where run_id = $1 and name = $2 and taken_by is null
order by number
limit 1
