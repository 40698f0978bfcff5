//! Pools of the smallest size that a worker accepts, and bodies that use all connections of a pool.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::future::join_all;
use runledger::prelude::*;
use runledger::{ClientError, Graph, RunState, Timings, Worker};
use runledger_tests::proxy::{Mode, Proxy};
use runledger_tests::rows::{execute, scalar, soon, until};
use runledger_tests::{Fixture, eventually};
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnectOptions;
use sqlx::{PgPool, Postgres};
use tokio::sync::Semaphore;
use uuid::Uuid;

/// One connection each for the claimer, the commit queue and bodies.
const FEWEST: u32 = 3;

async fn small(url: &str) -> Db {
    let options: PgConnectOptions = url.parse().unwrap();
    Db::connect_with(options, FEWEST).await.unwrap()
}

async fn all(pool: &PgPool) -> Vec<PoolConnection<Postgres>> {
    let n = pool.options().get_max_connections();
    join_all((0..n).map(|_| pool.acquire())).await.into_iter().map(Result::unwrap).collect()
}

#[job]
async fn small_plain(n: u32) -> Result<u32> {
    Ok(n)
}

/// Calls every function of its context while its transaction has the last connection of the pool.
#[job(max_attempts = 1)]
async fn small_asks(#[inject] context: &Context, #[inject] tx: &mut Tx) -> Result<Option<u32>> {
    sqlx::query("select 1").execute(&mut **tx).await?;
    let before: Option<u32> = context.last_progress().await?;
    context.progress(&7).await?;
    context.emit("a line").await?;
    let _: Option<u32> = context.config(1)?;
    small_plain(1).enqueue(&mut *tx).await?;
    assert_eq!(before, None);
    context.last_progress().await
}

#[workflow]
async fn small_asks_in_a_step(wf: &Wf) -> Result<Option<u32>> {
    Ok(wf.run(small_asks()).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn transactional_body_on_smallest_pool_reads_its_progress() {
    let Fixture { db, database } = Fixture::new().await;
    let served = jobs![small_plain, small_asks, small_asks_in_a_step];
    let worker =
        App::new(small(database.url()).await).with(served).timings(Timings::FAST).start().await.unwrap();
    let job = small_asks().enqueue(&db).await.unwrap();
    let step = small_asks_in_a_step().enqueue(&db).await.unwrap();
    let beside: Vec<_> = join_all((0..15).map(|n| small_plain(n).enqueue(&db)))
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(soon(job.result()).await.unwrap(), Some(7));
    assert_eq!(soon(step.result()).await.unwrap(), Some(7));
    for plain in beside {
        soon(plain.result()).await.unwrap();
    }
    worker.stop().await;
}

/// A role that the test can prevent from opening more connections.
struct Limited {
    admin: Db,
    role: String,
    own: Db,
}

/// Reads its progress while its process uses every connection that it can get. Returns the error.
#[job(max_attempts = 1)]
async fn small_looks(
    #[inject] limited: &Arc<Limited>,
    #[inject] context: &Context,
    #[inject] tx: &mut Tx,
) -> Result<String> {
    sqlx::query("select 1").execute(&mut **tx).await?;
    execute(&limited.admin, &format!("alter role {} connection limit 0", limited.role)).await;
    let hold = async {
        let mut held = Vec::new();
        loop {
            held.extend(limited.own.pool().acquire().await);
        }
    };
    tokio::select! {
        biased;
        () = hold => unreachable!(),
        looked = context.last_progress::<u32>() => Ok(looked.unwrap_err().to_string()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn transactional_body_gets_error_when_server_refuses_spare_connection() {
    let Fixture { db, database } = Fixture::new().await;
    let role = format!("limited_{}", Uuid::new_v4().simple());
    let grants = format!(
        "create role {role} login password 'x'; grant usage on schema runledger to {role};
         grant select, insert, update, delete on all tables in schema runledger to {role}"
    );
    execute(&db, &grants).await;
    let options: PgConnectOptions = database.url().parse().unwrap();
    let own = Db::connect_with(options.username(&role).password("x"), FEWEST).await.unwrap();
    let limited = Arc::new(Limited { admin: db.clone(), role: role.clone(), own: own.clone() });
    let app = App::new(own.clone()).with(jobs![small_looks]).timings(Timings::FAST).provide(limited);
    let worker = app.start().await.unwrap();
    let run = small_looks().enqueue(&db).await.unwrap();
    let told = soon(run.result()).await.unwrap();
    assert!(told.contains("perhaps because this body holds one"), "{told}");
    worker.stop().await;
    own.pool().close().await;
    execute(&db, &format!("drop owned by {role}; drop role {role}")).await;
}

/// Calls functions of its worker's `Db` that need a connection, while its transaction has the last
/// one of the pool.
#[job(max_attempts = 1)]
async fn small_asks_the_pool(#[inject] own: &Db, #[inject] tx: &mut Tx) -> Result<Vec<String>> {
    let other = small_plain(1).enqueue(&mut *tx).await?.with_db(own);
    let waits = small_everything().enqueue(&mut *tx).await?.with_db(own);
    let signalled = waits.signal("s", &1);
    let told = |asked: std::result::Result<(), ClientError>| match asked {
        Ok(()) => "answered".to_owned(),
        Err(error) => error.to_string(),
    };
    let asked = tokio::join!(
        async { told(other.result().await.map(drop)) },
        async { told(other.state().await.map(drop)) },
        async { told(other.cancel("enough").await.map(drop)) },
        async { told(signalled.send(own).await.map(drop)) },
        async { told(small_plain(2).enqueue(own).await.map(drop)) },
        async { told(small_plain(3).idempotency_key("k").enqueue(own).await.map(drop)) },
        async { told(own.set_job_config("small_plain", 1, &BTreeMap::from([("n", 1)])).await.map(drop)) },
        async { told(other.progress::<u32>().await.map(drop)) },
        async { told(other.query::<u32>("q").await.map(drop)) },
        async { told(own.workers().await.map(drop)) },
    );
    let (a, b, c, d, e, f, g, h, i, j) = asked;
    Ok(vec![a, b, c, d, e, f, g, h, i, j])
}

#[tokio::test(flavor = "multi_thread")]
async fn transactional_body_using_exhausted_pool_gets_error_with_reason() {
    let Fixture { db, database } = Fixture::new().await;
    let own = small(database.url()).await;
    let worker = App::new(own.clone())
        .with(jobs![small_plain, small_asks_the_pool])
        .timings(Timings::FAST)
        .provide(own)
        .start()
        .await
        .unwrap();
    // By now the claimer and the commit queue have their connections.
    soon(small_plain(0).enqueue(&db).await.unwrap().result()).await.unwrap();
    let told = soon(small_asks_the_pool().enqueue(&db).await.unwrap().result()).await.unwrap();
    for text in &told {
        assert!(text.contains("all 3 of the pool are in use") && text.contains("`tx`"), "{told:#?}");
    }
    worker.stop().await;
}

#[job]
async fn small_waits(#[inject] gate: &Arc<Semaphore>) -> Result<()> {
    gate.acquire().await?.forget();
    Ok(())
}

#[job(max_attempts = 1)]
async fn small_fails(#[inject] context: &Context) -> Result<()> {
    context.progress(&5).await?;
    Err("no".into())
}

#[job]
async fn small_taken_back(n: u32) -> Result<()> {
    assert_eq!(n, 1);
    Ok(())
}

#[job(max_attempts = 1)]
async fn small_taken(n: u32) -> Result<u32> {
    Ok(n)
}

/// Calls every function of the workflow handle, then fails and is compensated.
#[workflow]
async fn small_everything(wf: &Wf) -> Result<()> {
    let child = wf.start(small_plain(3)).await?;
    assert_eq!(child.result().await?, 3);
    wf.publish("state", &1).await?;
    wf.emit("a line");
    assert_eq!(wf.signal::<u32>("go").await?, 9);
    wf.sleep(Duration::from_millis(400)).await?;
    assert_eq!(wf.map([1_u32, 2], small_plain).await?, [1, 2]);
    wf.saga().run(small_taken(1), |n| small_taken_back(*n)).await?;
    wf.run(small_fails()).await?;
    Ok(())
}

async fn starved(own: &Db) -> (Worker, Arc<Semaphore>, tokio::sync::mpsc::UnboundedReceiver<Option<u32>>) {
    let gate = Arc::new(Semaphore::new(0));
    let (tell, told) = tokio::sync::mpsc::unbounded_channel();
    let worker = App::new(own.clone())
        .with(jobs![small_plain, small_waits, small_fails, small_taken, small_taken_back, small_everything])
        .timings(Timings::FAST)
        .idle_residency(Duration::ZERO)
        .provide(Arc::clone(&gate))
        .on_failure(move |failed| {
            let tell = tell.clone();
            async move {
                let _ = tell.send(failed.last_progress().unwrap());
            }
        })
        .start()
        .await
        .unwrap();
    (worker, gate, told)
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_executes_runs_while_its_whole_pool_is_in_use() {
    let Fixture { db, database } = Fixture::new().await;
    let own = small(database.url()).await;
    let held = all(own.pool()).await;
    let (worker, gate, mut hook) = starved(&own).await;

    let everything = small_everything().enqueue(&db).await.unwrap();
    everything.signal("go", &9_u32).send(&db).await.unwrap();
    let failed = soon(everything.result()).await.unwrap_err();
    assert!(matches!(failed, ClientError::RunFailed { .. }), "{failed:?}");
    let undone = db.run(everything.id()).steps().await.unwrap();
    assert!(undone.iter().any(|step| step.key.contains("compensate")), "{undone:#?}");

    small_fails().enqueue(&db).await.unwrap();
    while soon(hook.recv()).await.unwrap() != Some(5) {}

    let mut graph = Graph::new("small");
    let first = graph.node("first", small_plain(1));
    let second = graph.node("second", small_plain(2));
    graph.after(second, first);
    let graph = graph.enqueue(&db).await.unwrap();
    until(&db, graph.id(), |run| run.state == RunState::Completed).await;

    let cancelled = small_waits().enqueue(&db).await.unwrap();
    until(&db, cancelled.id(), |run| run.state == RunState::Running).await;
    cancelled.cancel("enough").await.unwrap();
    until(&db, cancelled.id(), |run| run.state == RunState::Cancelled).await;

    assert_eq!(own.pool().num_idle(), 0, "nothing came back meanwhile");
    gate.add_permits(1);
    drop(held);
    soon(worker.stop()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_closes_connections_opened_beside_exhausted_pool() {
    let Fixture { db, database } = Fixture::new().await;
    let own = small(database.url()).await;
    let held = all(own.pool()).await;
    let (worker, ..) = starved(&own).await;
    soon(small_plain(1).enqueue(&db).await.unwrap().result()).await.unwrap();
    drop(held);
    soon(worker.stop()).await;
    let left = "select count(*) from pg_stat_activity where application_name =
                (select session_name from runledger.worker order by worker_id desc limit 1)";
    let n_left = async || {
        own.pool().close().await;
        runledger_tests::rows::scalar::<i64>(&db, left).await
    };
    eventually(n_left, |n| *n == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_caller_of_exhausted_pool_gets_error_despite_slow_server() {
    let fixture = Fixture::new().await;
    let proxy = Proxy::start(fixture.database.url()).await.unwrap();
    let db = Db::connect_with(proxy.url().parse().unwrap(), 1).await.unwrap();
    let held = all(db.pool()).await;
    proxy.set(Mode::Delay(Duration::from_millis(80)));
    // Of 24 calls with a connection each, most would wait longer than a caller waits for the pool.
    let refused = (0..24).map(|n| small_plain(n).idempotency_key(n.to_string()));
    let refused = join_all(refused.map(|call| call.enqueue(&db)));
    for refused in refused.await {
        assert!(matches!(refused, Err(ClientError::PoolExhausted { connections: 1 })), "{refused:?}");
    }
    proxy.set(Mode::Pass);
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn exhausted_pool_error_suggests_repeat_once_connection_is_free_again() {
    let fixture = Fixture::new().await;
    let proxy = Proxy::start(fixture.database.url()).await.unwrap();
    let db = Db::connect_with(proxy.url().parse().unwrap(), 1).await.unwrap();
    let held = all(db.pool()).await;
    proxy.set(Mode::Delay(Duration::from_millis(300)));
    proxy.forget();
    let (refused, ()) = tokio::join!(small_plain(1).enqueue(&db), async {
        // The caller has given up on the pool and opens a connection, which takes many more round
        // trips.
        eventually(async || proxy.count("set client_min_messages"), |n| *n == 1).await;
        drop(held);
    });
    let told = format!("{:#}", anyhow::Error::from(refused.unwrap_err()));
    assert!(told.contains("the server accepts connections now, so repeat the call"), "{told}");
    assert!(!told.contains("right address"), "{told}");
    proxy.set(Mode::Pass);
}

/// `postgres:///app` with `PGHOST=/var/run/postgresql` gives an address that the driver cannot
/// write as a URL.
#[tokio::test(flavor = "multi_thread")]
async fn exhausted_pool_with_socket_directory_as_host_is_reported() {
    let fixture = Fixture::new().await;
    let options: PgConnectOptions = fixture.database.url().parse().unwrap();
    let folder = options.get_socket().unwrap().display().to_string();
    let by_folder = PgConnectOptions::new_without_pgpass()
        .host(&folder)
        .port(options.get_port())
        .username(options.get_username())
        .database(options.get_database().unwrap());
    let db = Db::connect_with(by_folder, 1).await.unwrap();
    let held = all(db.pool()).await;
    let refused = small_plain(1).enqueue(&db).await;
    assert!(matches!(refused, Err(ClientError::PoolExhausted { connections: 1 })), "{refused:?}");
    drop(held);
}

#[workflow]
async fn small_awaits(wf: &Wf) -> Result<()> {
    wf.run(small_waits()).await?;
    Ok(wf.signal("go").await?)
}

#[job]
async fn small_writes(#[inject] tx: &mut Tx) -> Result<()> {
    sqlx::query("select 1").execute(&mut **tx).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn suspensions_waiting_for_lock_leave_connections_to_bodies() {
    const WAITING: usize = 30;
    let Fixture { db, database } = Fixture::new().await;
    let own = Db::connect_with(database.url().parse().unwrap(), 6).await.unwrap();
    let gate = Arc::new(Semaphore::new(0));
    let app = App::new(own).with(jobs![small_awaits, small_waits, small_writes]).provide(Arc::clone(&gate));
    let worker = app.start().await.unwrap();
    let waiting = join_all((0..WAITING).map(|_| small_awaits().enqueue(&db))).await;
    let leases = "select count(*) from runledger.lease";
    eventually(async || scalar::<i64>(&db, leases).await, |n| *n == WAITING as i64).await;
    let mut holder = db.begin().await.unwrap();
    sqlx::query("select from runledger.lease for no key update").execute(&mut *holder).await.unwrap();
    gate.add_permits(WAITING);
    let suspends = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    eventually(async || scalar::<i64>(&db, suspends).await, |n| *n > 0).await;
    for _ in 0..20 {
        soon(small_writes().enqueue(&db).await.unwrap().result()).await.unwrap();
    }
    assert_eq!(scalar::<i64>(&db, leases).await, WAITING as i64, "the lock lasts");
    drop(holder);
    for run in waiting {
        let run = run.unwrap();
        run.signal("go", &()).await.unwrap();
        soon(run.result()).await.unwrap();
    }
    worker.stop().await;
}

/// Counts its starts, and occupies the last connection of its pool for `seconds`.
#[job(max_attempts = 1)]
async fn small_begins(seconds: u32, #[inject] begun: &Arc<AtomicU32>, #[inject] tx: &mut Tx) -> Result<()> {
    begun.fetch_add(1, Ordering::SeqCst);
    sqlx::query("select pg_sleep($1)").bind(f64::from(seconds)).execute(&mut **tx).await?;
    Ok(())
}

/// The server ends a transaction that is idle for a second. A transaction that began while
/// heartbeats fail would be such a one, and its body would start twice.
#[tokio::test(flavor = "multi_thread")]
async fn body_transaction_begins_only_after_heartbeats_recover() {
    let Fixture { db, database } = Fixture::new().await;
    let name: String = scalar(&db, "select current_database()::text").await;
    execute(&db, &format!("alter database {name} set idle_in_transaction_session_timeout = '1s'")).await;
    let begun = Arc::new(AtomicU32::new(0));
    let app = App::new(small(database.url()).await).with(jobs![small_begins]).timings(Timings::FAST);
    let worker = app.provide(Arc::clone(&begun)).start().await.unwrap();
    let first = small_begins(5).enqueue(&db).await.unwrap();
    eventually(async || begun.load(Ordering::SeqCst), |n| *n == 1).await;
    let second = small_begins(0).enqueue(&db).await.unwrap();
    until(&db, second.id(), |info| info.state == RunState::Running).await;
    let mut holder = db.begin().await.unwrap();
    sqlx::query("set local idle_in_transaction_session_timeout = 0").execute(&mut *holder).await.unwrap();
    sqlx::query("lock table runledger.worker in share mode").execute(&mut *holder).await.unwrap();
    soon(first.result()).await.unwrap();
    sqlx::query("select pg_sleep(3)").execute(&mut *holder).await.unwrap();
    drop(holder);
    soon(second.result()).await.unwrap();
    assert_eq!(begun.load(Ordering::SeqCst), 2);
    worker.stop().await;
}
