-- stranded: the net under waking: runs that wait for children of which one has ended. Empty unless a wake-up was lost.
-- in:    $1 how many
-- out:   run_id; ended children
-- locks: none
-- index: waiting_pkey, outcome_pkey
select child.run_id
from runledger.waiting
cross join lateral unnest(waiting.wait_for) as child (run_id)
cross join lateral (select run_id from runledger.outcome where run_id = child.run_id offset 0) as ended
where waiting.state = 'waiting' and waiting.since < now() - interval '5 seconds'
limit $1
