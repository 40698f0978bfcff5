-- signal_left: reads the first signal of a name that no step of the run has consumed.
-- in:    $1 run, $2 name
-- out:   number, idempotency_key, payload; no row if there is none
-- locks: none: anyone may send signals, but only the attempt that holds the run consumes them
-- index: signal_left
select number, idempotency_key, payload::text as payload
from runledger.signal
where run_id = $1 and name = $2 and taken_by is null
order by number
limit 1
