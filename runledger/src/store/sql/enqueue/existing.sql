-- existing: reads the stored requests that keyed enqueues conflicted with.
-- in:    $1 run ids
-- out:   run_id, input, options
-- locks: none
-- index: run_pkey
--
-- A separate statement after the insert, because its snapshot must see the transaction that the
-- insert waited for.
select run_id, input::text as input, options::text as options
from runledger.run
where run_id = any($1::uuid[])
