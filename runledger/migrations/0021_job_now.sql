-- The job of a run as it is now, and not as the statement that asks has begun to see the database: `volatile`, so each call looks anew.
create function runledger.job_now(run_id uuid) returns text
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    select run.job from runledger.run where run.run_id = $1;
$$;
