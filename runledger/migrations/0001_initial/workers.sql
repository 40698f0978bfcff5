-- Workers, and what they use of the server.

-- A random id. A counter would give an id twice after a failover that loses commits. 48 bits are
-- exact in languages that know only doubles.
create function runledger.new_worker_id() returns bigint
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    select ('x' || translate(left(gen_random_uuid()::text, 13), '-', ''))::bit(48)::bigint;
$$;

-- Workers, living and dead. A living worker holds the session advisory lock of its id.
create table runledger.worker (
    worker_id bigint primary key default runledger.new_worker_id(),
    name text not null,
    version text not null,
    -- The application name of the process's sessions. The sessions of a dead worker are ended by
    -- it.
    session_name text not null,
    state text not null default 'active' check (state in ('active', 'draining', 'dead')),
    -- The incarnation of the server in which the lock was taken. Null if the lock proves nothing
    -- (behind a pooler).
    lock_incarnation text,
    sleeping boolean not null default false,
    drain_requested boolean not null default false,
    jobs text[] not null,
    queues text[] not null,
    heartbeat_at timestamptz not null default clock_timestamp(),
    started_at timestamptz not null default clock_timestamp(),
    died_at timestamptz,
    died_why text,
    -- The run that the worker executes while no other suspect runs in its process. If the process
    -- crashes, the crash counts against this run only. The row of a dead worker keeps it.
    trial uuid,
    check ((state = 'dead') = (died_at is not null))
)
with (fillfactor = 50);

create index worker_living on runledger.worker (worker_id) where state <> 'dead';
-- The workers of one process.
create index worker_session on runledger.worker (session_name collate "C");

-- Whether a worker seems to be alive: it sent a heartbeat recently, or holds its lock. For people.
-- The engine decides with more care which runs it takes over.
create function runledger.is_living(worker runledger.worker) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
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

-- Sends a notification, unless the queue of notifications is more than half full: a full queue
-- fails the commit of the sender. Notifications are hints, so one may be missing.
create function runledger.notify(channel text, payload text) returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    select case when pg_notification_queue_usage() < 0.5 then pg_notify(channel, payload) end;
$$;

-- A crash of the server empties it. So its id changes whenever session locks may have vanished.
create unlogged table runledger.incarnation (
    one boolean primary key default true check (one),
    id uuid not null default gen_random_uuid()
);

-- Two statements, because each needs its own snapshot: in one statement, the loser of a race for
-- the row would neither insert nor see it.
create function runledger.server_incarnation() returns text
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    insert into runledger.incarnation default values
    on conflict do nothing;
    select incarnation.id::text || '/' || extract(epoch from pg_postmaster_start_time())::text
    from runledger.incarnation;
$$;
