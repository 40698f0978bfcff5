-- take_signal: gives a step the first signal of its name that is left, and records the step with it, both or neither. A sealed payload is sealed for the
--        signal: it is shown, and nothing is recorded, until the client gives the step's own.
-- in:    $1 run, $2 token, $3 step key, $4 ordinal, $5 fingerprint, $6 seen_len, $7 seen (a JSON array or null), $8 name,
--        $9 the only signal that is to be taken (null: the first), $10 the step's output (null: the payload)
-- out:   output (null where none is left; that of the record where the step is recorded: a lost acknowledgement),
--        number, idempotency_key, payload (of the signal that is shown, else null); one row where the fence holds
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
    select number, idempotency_key, payload, $10::text is null and position('"$sealed"' in payload::text) > 0 as is_shown
    from runledger.signal
    where run_id = (select run_id from held) and name = $8 and taken_by is null and not exists (select from recorded)
        and number = coalesce($9::integer, number)
    order by number
    limit 1
    for update
),
taken as (
    update runledger.signal
    set taken_by = $3
    where run_id = $1 and name = $8 and number = (select number from next where not is_shown)
    returning coalesce($10::text::json, payload) as output
),
record as (
    insert into runledger.step (run_id, key, ordinal, fingerprint, output, seen_len, seen, claims)
    select held.run_id, $3, $4, $5, taken.output, $6, translate($7, '[]', '{}')::bigint[], held.claims
    from held, taken
)
select coalesce((select output::text from taken), (select output from recorded)) as output,
    shown.number, shown.idempotency_key, shown.payload::text as payload
from held
left join next as shown on shown.is_shown
