-- end_of_run: reads how a run ended, if it has.
-- in:    $1 run
-- out:   state, output, error; one row if the run exists
-- locks: none
-- index: run_pkey, and the primary keys under runledger.run_state
select state, output::text as output, error::text as error
from runledger.run_state
where run_id = $1
