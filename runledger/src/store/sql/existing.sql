-- existing: the stored requests that keyed submissions met.
-- in:    $1 run ids
-- out:   run_id, input, options
-- locks: none
-- index: run_pkey. A statement of its own, after the insert: its snapshot sees what the insert waited for.
select run_id, input::text as input, options::text as options
from runledger.run
where run_id = any($1::uuid[])
