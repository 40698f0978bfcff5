-- Whether a worker process is there, as far as can be seen without waiting: it has said so lately, or holds the session lock that goes with its process. For
-- people: who may take the runs of a worker is decided with more care, and a dead one is buried only by another that lives.
create function runledger.is_living(worker runledger.worker) returns boolean
language sql stable
as $$
    select worker.state <> 'dead'
        and (
            worker.heartbeat_at > clock_timestamp() - case when worker.lock_incarnation is null then interval '30 seconds' else interval '6 seconds' end
            or exists (
                select
                from pg_locks
                where locktype = 'advisory' and granted and objsubid = 2
                    and database = (select oid from pg_database where datname = current_database())
                    and classid = 'runledger.worker'::regclass::oid and objid::bigint = worker.worker_id % 2147483647
            )
        );
$$;
