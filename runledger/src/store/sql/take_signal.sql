-- take_signal: gives a step the first signal of its name that is left, and records the step with it, both or neither.
-- in:    $1 run, $2 token, $3 step key, $4 ordinal, $5 fingerprint, $6 seen_len, $7 seen (a JSON array or null), $8 name
-- out:   payload (null where none is left; that of the record where the step is recorded: a lost acknowledgement); one row where the fence holds
-- locks: `for key share` on the lease; the signal
-- index: lease_pkey, signal_left, step_pkey
with held as (
    select run_id, claims
    from runledger.lease
    where run_id = $1 and token = $2
    for key share
),
recorded as (
    select output::text
    from runledger.step
    where run_id = $1 and key = $3
),
next as (
    select signal.number
    from runledger.signal
    where run_id = (select run_id from held) and name = $8 and taken_by is null and not exists (select from recorded)
    order by number
    limit 1
    for update
),
taken as (
    update runledger.signal
    set taken_by = $3
    where run_id = $1 and name = $8 and number = (select number from next)
    returning payload
),
record as (
    insert into runledger.step (run_id, key, ordinal, fingerprint, output, seen_len, seen, claims)
    select held.run_id, $3, $4, $5, taken.payload, $6, translate($7, '[]', '{}')::bigint[], held.claims
    from held, taken
)
select coalesce((select payload::text from taken), (select output from recorded)) as payload
from held
