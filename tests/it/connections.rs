//! Connections that no longer answer, and bodies that use many connections.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use runledger::prelude::*;
use runledger::{ClientError, Timings};
use runledger_tests::proxy::{Fault, Mode, Proxy};
use runledger_tests::rows::{execute, scalar};
use runledger_tests::{Fixture, PATIENCE, eventually};
use sqlx::AssertSqlSafe;
use tokio::sync::Semaphore;

#[job]
async fn connections_plain(n: u32) -> Result<u32> {
    Ok(n)
}

#[workflow]
async fn connections_gated(wf: &Wf, #[inject] gate: &Arc<Semaphore>) -> Result<u32> {
    wf.run(connections_plain(1)).await?;
    wf.step("gate", || async {
        gate.acquire().await?.forget();
        Ok::<_, Error>(())
    })
    .await?;
    Ok(wf.run(connections_plain(2)).await?)
}

#[job]
async fn connections_held(#[inject] gate: &Arc<Semaphore>, #[inject] tx: &mut Tx) -> Result<()> {
    sqlx::query("select 1").execute(&mut **tx).await?;
    gate.acquire().await?.forget();
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_continues_on_new_connections_after_firewall_drops_old_ones() {
    let Fixture { db, database } = Fixture::new().await;
    let proxy = Proxy::start(database.url()).await.unwrap();
    let gate = Arc::new(Semaphore::new(0));
    let worker = App::new(Db::connect(proxy.url()).await.unwrap())
        .with(jobs![connections_plain, connections_gated])
        .timings(Timings::FAST)
        .provide(Arc::clone(&gate))
        .start()
        .await
        .unwrap();
    let gated = connections_gated().enqueue(&db).await.unwrap();
    eventually(async || gated.steps().await.unwrap().len(), |n| *n == 1).await;
    proxy.strand();
    gate.add_permits(1);
    let plain = connections_plain(3).enqueue(&db).await.unwrap();
    assert_eq!(plain.result_within(PATIENCE).await.unwrap(), 3);
    assert_eq!(gated.result_within(PATIENCE).await.unwrap(), 2);
    worker.stop().await;
}

const DECLARE_DEAD: &str = "update runledger.worker
    set state = 'dead', died_at = clock_timestamp(), died_why = 'its lease was over' where state <> 'dead'";

#[tokio::test(flavor = "multi_thread")]
async fn worker_registers_on_another_connection_when_firewall_drops_registration() {
    join_all(["-- worker_register", "-- worker_lock:"].map(async |statement| {
        let Fixture { db, database } = Fixture::new().await;
        let proxy = Proxy::start(database.url()).await.unwrap();
        let app = App::new(Db::connect(proxy.url()).await.unwrap()).with(jobs![connections_plain]);
        let worker = app.timings(Timings::FAST).start().await.unwrap();
        proxy.arm(statement, Fault::Strand);
        execute(&db, DECLARE_DEAD).await;
        let plain = connections_plain(3).enqueue(&db).await.unwrap();
        assert_eq!(plain.result_within(PATIENCE).await.unwrap(), 3, "{statement}");
        assert_eq!(proxy.n_faults(), 1, "{statement}");
        worker.stop().await;
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_stops_while_database_does_not_answer_registration() {
    let Fixture { db, database } = Fixture::new().await;
    let proxy = Proxy::start(database.url()).await.unwrap();
    let app = App::new(Db::connect(proxy.url()).await.unwrap()).with(jobs![connections_plain]);
    // The lease is longer than the test waits.
    let timings = Timings::new(Duration::from_millis(200), Duration::from_secs(1), PATIENCE * 2);
    let worker = app.timings(timings).start().await.unwrap();
    proxy.arm("-- worker_register", Fault::Strand);
    execute(&db, DECLARE_DEAD).await;
    eventually(async || proxy.n_faults(), |n_faults| *n_faults == 1).await;
    tokio::time::timeout(PATIENCE, worker.stop()).await.unwrap();
}

#[workflow]
async fn connections_parent(wf: &Wf) -> Result<u32> {
    let child = wf.start(connections_plain(7)).await?;
    Ok(child.result().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn server_ends_engine_transaction_left_open_by_network() {
    let Fixture { db, database } = Fixture::new().await;
    let proxy = Proxy::start(database.url()).await.unwrap();
    let own = Db::connect(proxy.url()).await.unwrap();
    // Holds the suspension of the parent or the settlement of its child forever. Both lock the
    // parent's row.
    proxy.arm("COMMIT", Fault::Hold);
    let app = App::new(own).with(jobs![connections_plain, connections_parent]).timings(Timings::FAST);
    let worker = app.start().await.unwrap();
    let parent = connections_parent().enqueue(&db).await.unwrap();
    assert_eq!(parent.result_within(PATIENCE).await.unwrap(), 7);
    assert_eq!(proxy.n_faults(), 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transactional_bodies_leave_pool_connections_free() {
    let Fixture { db, database } = Fixture::new().await;
    let gate = Arc::new(Semaphore::new(0));
    let own = Db::connect(database.url()).await.unwrap();
    let worker = App::new(own.clone())
        .with(jobs![connections_plain, connections_held])
        .provide(Arc::clone(&gate))
        .start()
        .await
        .unwrap();
    let held = runledger::enqueue_all((0..40).map(|_| connections_held()), &db).await.unwrap();
    let begun = "select count(*) from pg_stat_activity where datname = current_database() and state = 'idle in transaction'";
    eventually(async || scalar::<i64>(&db, begun).await, |n| *n >= 5).await;
    for n in 0..20 {
        assert_eq!(
            connections_plain(n).enqueue(&own).await.unwrap().result_within(PATIENCE).await.unwrap(),
            n
        );
    }
    gate.add_permits(held.len());
    for run in held {
        RunHandle::attach(connections_held, &db, run.run_id).result_within(PATIENCE).await.unwrap();
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn result_within_times_out_while_database_does_not_answer() {
    let Fixture { db: _db, database } = Fixture::new().await;
    let proxy = Proxy::start(database.url()).await.unwrap();
    let db = Db::connect(proxy.url()).await.unwrap();
    let handle = connections_plain(1).enqueue(&db).await.unwrap();
    // The handle has polled once and now listens.
    let listens = handle.result_within(Duration::from_millis(500)).await;
    assert!(matches!(listens, Err(ClientError::WaitTimedOut { .. })), "{listens:?}");
    // The error is the same for every kind of outage.
    let waits = async || {
        tokio::time::timeout(PATIENCE, handle.result_within(Duration::from_millis(100))).await.unwrap()
    };
    proxy.set(Mode::BlackHole);
    let silent = waits().await;
    assert!(matches!(silent, Err(ClientError::WaitTimedOut { .. })), "{silent:?}");
    proxy.set(Mode::Refuse);
    proxy.cut();
    let refused = waits().await;
    assert!(matches!(refused, Err(ClientError::WaitTimedOut { .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn result_listener_dropped_by_firewall_is_replaced() {
    let Fixture { db: _db, database } = Fixture::new().await;
    let proxy = Proxy::start(database.url()).await.unwrap();
    let db = Db::connect(proxy.url()).await.unwrap();
    let waited = connections_plain(1).enqueue(&db).await.unwrap();
    let waiting = tokio::spawn(async move { waited.result().await });
    let listeners = || proxy.count("LISTEN");
    eventually(async || listeners(), |n| *n == 1).await;
    proxy.strand();
    eventually(async || listeners(), |n| *n == 2).await;
    waiting.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn pool_sessions_end_only_with_last_worker_using_pool() {
    let Fixture { db, database } = Fixture::new().await;
    let shared = Db::connect(database.url()).await.unwrap();
    let mut body = shared.begin().await.unwrap();
    let of_pool = "select application_name from pg_stat_activity where pid = pg_backend_pid()";
    let session: String = sqlx::query_scalar(of_pool).fetch_one(&mut *body).await.unwrap();
    let two = format!(
        "insert into runledger.worker (name, version, session_name, jobs, queues)
         select name, '0', '{session}', '{{}}', '{{}}' from unnest(array['one', 'other']) as name"
    );
    execute(&db, &two).await;
    let (_, end_sessions) =
        runledger::__private::STATEMENTS.iter().find(|(name, _)| *name == "end_sessions").unwrap();
    let mut ended = Vec::new();
    for name in ["one", "other"] {
        let dies =
            "update runledger.worker set state = 'dead', died_at = clock_timestamp(), died_why = 'test'
                    where name = $1 returning worker_id";
        let worker_id: i64 = sqlx::query_scalar(dies).bind(name).fetch_one(db.pool()).await.unwrap();
        let n: i64 = sqlx::query_scalar(*end_sessions).bind(worker_id).fetch_one(db.pool()).await.unwrap();
        ended.push(n > 0);
    }
    assert_eq!(ended, [false, true], "the first of two dead workers takes the sessions of the living one");
    assert!(sqlx::query("select 1").execute(&mut *body).await.is_err());
}

/// Without statistics about parents, the planner overestimates the query for descendants. It runs
/// whenever a workflow fails or is cancelled.
#[tokio::test(flavor = "multi_thread")]
async fn descendant_cancellation_uses_parent_index_without_jit() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let many = "insert into runledger.run (run_id, job, tenant, queue, priority, input, start_at)
                select gen_random_uuid(), 'any', '', 'default', 0, '{}', now() from generate_series(1, 100000)";
    execute(&db, many).await;
    let statement = include_str!("../../runledger/src/store/sql/stop/cancel_below.sql");
    let mut connection = db.pool().acquire().await.unwrap();
    let prepare = format!("prepare below (uuid[], uuid[], text[], bigint) as {statement}");
    sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut *connection).await.unwrap();
    let explain = "explain (analyze, timing off, summary off) execute below (array[gen_random_uuid()], array[gen_random_uuid()], array[null], 100)";
    let plan: Vec<String> = sqlx::query_scalar(explain).fetch_all(&mut *connection).await.unwrap();
    assert!(plan.iter().any(|line| line.contains("run_parent")), "{plan:#?}");
    assert!(!plan.iter().any(|line| line.contains("JIT")), "{plan:#?}");
}
