-- set_overrides: says of jobs what holds in the place of their own definitions. What was said of them before is forgotten.
-- in:    $1 whether what was said of all other jobs is forgotten too, $2 jobs, $3 why they are disabled (null: they are not), $4 attempts,
--        $5 time limits in milliseconds, $6 first delays, $7 largest delays in milliseconds; arrays of one length
-- out:   changed; one row: how many jobs have another tuning than before
-- locks: the rows of `tuning` that change, in the order of the jobs
-- index: tuning_pkey
with gone as (
    delete from runledger.tuning
    where $1 and job <> all ($2::text[])
    returning job
),
said as (
    insert into runledger.tuning as known (job, disabled, max_attempts, timeout_ms, backoff_first_ms, backoff_cap_ms)
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
