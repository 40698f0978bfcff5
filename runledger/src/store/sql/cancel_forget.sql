-- cancel_forget: drops requests that came too late, and those that have been carried out.
-- in:    none
-- out:   none
-- locks: the rows of `cancel` (deleted)
-- index: outcome_pkey
delete from runledger.cancel
where exists (select from runledger.outcome where outcome.run_id = cancel.run_id offset 0)
