-- stranded: the net under waking: runs that wait for children of which one has ended. Empty unless a wake-up was lost.
-- in:    $1 how many
-- out:   ids of ended children
-- locks: none
-- index: waiting_pkey, outcome_pkey
select outcome.run_id
from runledger.waiting
cross join lateral unnest(waiting.wait_for) as child (run_id)
join runledger.outcome on outcome.run_id = child.run_id
where waiting.state = 'waiting' and waiting.since < now() - interval '5 seconds'
limit $1
