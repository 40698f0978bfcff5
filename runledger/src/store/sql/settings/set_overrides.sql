-- set_overrides: sets the overrides of jobs. Replaces the previous overrides of these jobs.
-- in:    $1 whether to clear the overrides of all other jobs; $2 jobs, $3 why they are disabled
--        (null: enabled), $4 attempts, $5 time limits, $6 first delays and $7 largest delays, in
--        milliseconds; arrays of one length
-- out:   changed; one row: the number of jobs whose override changed
-- locks: the rows of `job_override` that change, in the order of the jobs
-- index: job_override_pkey
with gone as (
    delete from runledger.job_override
    where $1 and job <> all ($2::text[])
    returning job
),
said as (
    insert into runledger.job_override as known (job, disabled, max_attempts, timeout_ms, backoff_first_ms, backoff_cap_ms)
    select job, disabled, max_attempts, timeout_ms, backoff_first_ms, backoff_cap_ms
    from unnest($2::text[], $3::text[], $4::integer[], $5::bigint[], $6::bigint[], $7::bigint[])
        as item (job, disabled, max_attempts, timeout_ms, backoff_first_ms, backoff_cap_ms)
    order by job
    on conflict (job) do update
    set (disabled, max_attempts, timeout_ms, backoff_first_ms, backoff_cap_ms, changed_at) =
        (excluded.disabled, excluded.max_attempts, excluded.timeout_ms, excluded.backoff_first_ms, excluded.backoff_cap_ms, pg_catalog.clock_timestamp())
    where (known.disabled, known.max_attempts, known.timeout_ms, known.backoff_first_ms, known.backoff_cap_ms)
        is distinct from (excluded.disabled, excluded.max_attempts, excluded.timeout_ms, excluded.backoff_first_ms, excluded.backoff_cap_ms)
    returning job
)
select (select pg_catalog.count(*) from gone) + (select pg_catalog.count(*) from said) as changed
