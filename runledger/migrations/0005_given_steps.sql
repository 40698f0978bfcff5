-- Whether a run has a step of its own whose undo is not recorded. Steps that it was given, as it was made of another run, were done by that one, which may rest
-- on them: where this run fails or is cancelled they stay.
create or replace function runledger.is_to_undo(run_id uuid) returns boolean
language sql stable
as $$
    select exists (
        select
        from runledger.step
        where step.run_id = $1
            and step.undo is not null
            and step.claims > 0
            and not exists (select from runledger.step as undone where undone.run_id = $1 and undone.key = 'undo[' || step.key || ']')
    );
$$;
