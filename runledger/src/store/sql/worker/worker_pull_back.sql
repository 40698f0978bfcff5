-- worker_pull_back: sets the heartbeat of workers whose last heartbeat lies in the future to now.
-- in:    $1 seconds by which a heartbeat lies in the future
-- out:   none
-- locks: the workers' rows, skipping workers that send a heartbeat at this moment
-- index: worker_living
--
-- Such heartbeats exist after the clock has jumped back. Without this statement, silence would
-- count only once the clock reaches them. A living worker sends a heartbeat soon.
update runledger.worker
set heartbeat_at = pg_catalog.clock_timestamp()
where worker_id = any (array(
        select worker_id
        from runledger.worker
        where state <> 'dead' and heartbeat_at > pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $1)
        for no key update skip locked
    ))
