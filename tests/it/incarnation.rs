//! The server's incarnation: session locks prove a death only within one incarnation.

use runledger::prelude::*;
use runledger_tests::rows::{execute, scalar, worker};
use runledger_tests::{Fixture, eventually};
use sqlx::PgConnection;

#[job]
async fn incarnation_idle() -> Result<()> {
    Ok(())
}

async fn incarnation(connection: &mut PgConnection) -> Option<String> {
    sqlx::query_scalar("select runledger.server_incarnation()").fetch_one(connection).await.unwrap()
}

#[tokio::test]
async fn concurrent_first_workers_after_server_crash_see_one_incarnation() {
    let fixture = Fixture::new().await;
    let [mut one, mut other] =
        [fixture.database.connect().await.unwrap(), fixture.database.connect().await.unwrap()];
    sqlx::raw_sql("delete from runledger.incarnation; begin").execute(&mut one).await.unwrap();
    let first = incarnation(&mut one).await;
    let second = tokio::spawn(async move { incarnation(&mut other).await });
    let blocked = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    let n_blocked =
        async || sqlx::query_scalar::<_, i64>(blocked).fetch_one(fixture.db.pool()).await.unwrap();
    eventually(n_blocked, |n| *n == 1).await;
    sqlx::raw_sql("commit").execute(&mut one).await.unwrap();
    let second = second.await.unwrap();
    assert!(first.is_some(), "the first has none");
    assert_eq!(second, first);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_worker_waits_full_lease_before_declaring_silent_worker_dead() {
    let fixture = Fixture::new().await;
    let db = &fixture.db;
    let silent = "insert into runledger.worker (name, version, session_name, jobs, queues, heartbeat_at, lock_incarnation)
                  values ('silent', '0', 'silent', '{}', '{}', now() - interval '1 hour', 'before the outage')";
    execute(db, silent).await;
    let newcomer = worker(db, jobs![incarnation_idle]).await;
    let is_dead = "select count(*) from runledger.worker where name = 'silent' and state = 'dead'";
    eventually(async || scalar::<i64>(db, is_dead).await, |n| *n == 1).await;
    // A full lease of the newcomer: during that time the silent worker could have come back.
    let waited = "select silent.died_at - newcomer.started_at >= interval '4 seconds'
                  from runledger.worker silent, runledger.worker newcomer
                  where silent.name = 'silent' and newcomer.name <> 'silent'";
    assert!(scalar::<bool>(db, waited).await, "declared dead before it could beat again");
    newcomer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_worker_with_far_future_heartbeat_is_detected() {
    let fixture = Fixture::new().await;
    let db = &fixture.db;
    let future = "insert into runledger.worker (name, version, session_name, jobs, queues, heartbeat_at, lock_incarnation)
                  values ('future', '0', 'future', '{}', '{}', now() + interval '2 hours', runledger.server_incarnation())";
    execute(db, future).await;
    let living = worker(db, jobs![incarnation_idle]).await;
    let is_dead = "select count(*) from runledger.worker where name = 'future' and state = 'dead'";
    eventually(async || scalar::<i64>(db, is_dead).await, |n| *n == 1).await;
    living.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slightly_future_heartbeat_is_left_unchanged() {
    let fixture = Fixture::new().await;
    let db = &fixture.db;
    let soon = "insert into runledger.worker (name, version, session_name, jobs, queues, heartbeat_at)
                values ('soon', '0', 'soon', '{}', '{}', now() + interval '4 seconds')";
    let at = "select extract(epoch from heartbeat_at)::float8 from runledger.worker where name = 'soon'";
    execute(db, soon).await;
    let before = scalar::<f64>(db, at).await;
    worker(db, jobs![incarnation_idle]).await.stop().await;
    assert_eq!(scalar::<f64>(db, at).await.to_bits(), before.to_bits());
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_with_registration_lost_in_failover_takes_new_id() {
    let fixture = Fixture::new().await;
    let db = &fixture.db;
    let first = worker(db, jobs![incarnation_idle]).await;
    let number = first.id();
    execute(db, "delete from runledger.worker").await;
    eventually(async || first.id(), |id| *id != number).await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_takes_another_id_when_another_session_holds_its_lock() {
    let fixture = Fixture::new().await;
    let db = &fixture.db;
    // The lock has 31 bits of the worker's number. Those bits of the first number are 7.
    let numbers = "create sequence number;
                   create or replace function runledger.new_worker_id() returns bigint language sql volatile as
                       $$ select case nextval('public.number') when 1 then 7 + 2147483647::bigint else 8 end $$";
    execute(db, numbers).await;
    let mut stranger = fixture.database.connect().await.unwrap();
    let lock = "select pg_advisory_lock('runledger.worker'::regclass::oid::int4, 7)";
    sqlx::raw_sql(lock).execute(&mut stranger).await.unwrap();
    let started = worker(db, jobs![incarnation_idle]).await;
    assert_eq!(started.id(), 8);
    started.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn schema_has_no_sequences_and_worker_ids_stay_distinct() {
    let fixture = Fixture::new().await;
    let counters = "select count(*) from pg_class join pg_namespace on pg_namespace.oid = relnamespace
                    where relkind = 'S' and nspname = 'runledger'";
    assert_eq!(scalar::<i64>(&fixture.db, counters).await, 0);
    let numbers = "select count(distinct number) = 1000 and min(number) > 0 and max(number) < 1::bigint << 48 and max(number) > 1::bigint << 40
                   from (select runledger.new_worker_id() as number from generate_series(1, 1000)) as made";
    assert!(scalar::<bool>(&fixture.db, numbers).await);
}
