-- In which slice of a run's work a signal was taken: the keys of steps begin anew with each, and the steps of those before are gone. Negative: taken by a run
-- that this one goes on for.
alter table runledger.signal add column taken_in integer not null default 0;
