-- worker_pull_back: lets the silence of workers begin now whose last heartbeat lies in the future, because the clock has jumped back: it would count
--                   only from then on. Those that live say so themselves.
-- in:    $1 seconds by which a heartbeat lies in the future
-- out:   none
-- locks: the workers' rows; those that send a heartbeat are skipped
-- index: worker_living
update runledger.worker
set heartbeat_at = pg_catalog.clock_timestamp()
where worker_id = any (array(
        select worker_id
        from runledger.worker
        where state <> 'dead' and heartbeat_at > pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $1)
        for no key update skip locked
    ))
