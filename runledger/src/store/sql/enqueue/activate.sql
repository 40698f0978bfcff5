-- activate: assigns the active keys of runs that this transaction wrote. A key that another live
--           run holds is refused.
-- in:    $1 runs, each with a different key
-- out:   refused, isolation; one row: the refused runs, and the isolation level of the transaction
-- locks: the rows of `active`, in the order of the keys. Waits for a transaction that is assigning
--        one of these keys
-- index: run_pkey, active_pkey, outcome_pkey
--
-- Writes only under read committed. A stricter level could miss that the run that held the key has
-- ended.
with item as (
    select run.run_id, run.tenant, run.options #>> '{active_key,job}'::text[] as job, run.options #>> '{active_key,key}'::text[] as key
    from pg_catalog.unnest($1::uuid[]) as wanted (run_id)
    cross join lateral (select run_id, tenant, options from runledger.run where run_id = wanted.run_id offset 0) as run
    where run.options -> 'active_key'::text is not null
),
given as (
    insert into runledger.active as held (tenant, job, key, run_id)
    select tenant, job, key, run_id
    from item
    where pg_catalog.current_setting('transaction_isolation') in ('read committed', 'read uncommitted')
    order by tenant, job, key
    on conflict (tenant, job, key) do update
    set run_id = excluded.run_id
    where held.run_id = excluded.run_id or exists (select from runledger.outcome where outcome.run_id = held.run_id offset 0)
    returning run_id
)
select
    array(select run_id from item where not exists (select from given where given.run_id = item.run_id)) as refused,
    pg_catalog.current_setting('transaction_isolation') as isolation
