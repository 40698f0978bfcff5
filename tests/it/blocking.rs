//! Behaviour 14: handlers that block, and small pools.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use runledger::prelude::*;
use runledger::{ClientError, RunHandle, RunState, Timings};
use runledger_tests::rows::{execute, scalar, soon, until, worker};
use runledger_tests::{Fixture, eventually};
use sqlx::Connection;
use sqlx::postgres::PgConnectOptions;

static RELEASED: AtomicBool = AtomicBool::new(false);

/// Blocks its thread, which no handler should do.
#[job]
async fn blocks_its_thread() -> Result<()> {
    while !RELEASED.load(Ordering::Acquire) {
        std::thread::park_timeout(Duration::from_millis(20));
    }
    Ok(())
}

#[job]
async fn blocking_bystander() -> Result<()> {
    Ok(())
}

const THREADS: usize = 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_blocking_every_thread_do_not_stop_heartbeats() {
    let Fixture { db, database } = Fixture::new().await;
    let url = database.url().to_owned();
    let (stop, stopped) = mpsc::channel::<()>();
    let victim = std::thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build().unwrap();
        let worker = runtime.block_on(async {
            let db = Db::connect(&url).await.unwrap();
            let app = App::new(db).with(jobs![blocks_its_thread]).timings(Timings::FAST);
            runtime.spawn(app.start()).await.unwrap().unwrap()
        });
        stopped.recv().unwrap();
        runtime.block_on(worker.stop());
    });
    // Declares workers dead that are silent for their lease.
    let undertaker = worker(&db, jobs![blocking_bystander]).await;
    let mut handles = Vec::new();
    for _ in 0..THREADS {
        handles.push(blocks_its_thread().enqueue(&db).await.unwrap());
    }
    let outlived = "select count(*) from runledger.lease join runledger.worker using (worker_id)
                    where heartbeat_at > claimed_at + interval '6 seconds' and state = 'active'";
    eventually(async || scalar::<i64>(&db, outlived).await, |n_held| *n_held == 2).await;
    RELEASED.store(true, Ordering::Release);
    for handle in &handles {
        soon(handle.result()).await.unwrap();
        let info = handle.info().await.unwrap();
        assert_eq!((info.attempt, info.crashes), (1, 0));
    }
    let n_claims: i64 = scalar(&db, "select count(*) from runledger.worker where state = 'dead'").await;
    assert_eq!(n_claims, 0, "nobody was declared dead");
    stop.send(()).unwrap();
    victim.join().unwrap();
    undertaker.stop().await;
}

#[workflow]
async fn drowsy(wf: &Wf, n: u64) -> Result<u64> {
    let nap = || async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok::<u64, Error>(n)
    };
    let before = wf.step("nap", nap).await?;
    wf.sleep(Duration::from_millis(400)).await?;
    let after = wf.step("nap", nap).await?;
    Ok(before + after)
}

async fn with_pool_of_three(url: &str) -> Db {
    let options: PgConnectOptions = url.parse().unwrap();
    Db::connect_with(options, 3).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_sleeping_runs_complete_on_pool_of_three_connections() {
    let Fixture { db, database } = Fixture::new().await;
    let small = with_pool_of_three(database.url()).await;
    let worker = worker(&small, jobs![drowsy]).await;
    let mut handles = Vec::new();
    for n in 0..64 {
        handles.push((n, drowsy(n).enqueue(&db).await.unwrap()));
    }
    for (n, handle) in &handles {
        assert_eq!(soon(handle.result()).await.unwrap(), 2 * n);
        let info = handle.info().await.unwrap();
        assert_eq!((info.attempt, info.crashes, info.state), (1, 0, RunState::Completed));
    }
    let n_steps: i64 = scalar(&db, "select count(*) from runledger.step").await;
    assert_eq!(n_steps, 64 * 3);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn process_opens_at_most_nine_connections_beyond_its_pool() {
    let Fixture { db, database } = Fixture::new().await;
    let small = with_pool_of_three(database.url()).await;
    let worker = worker(&small, jobs![drowsy]).await;
    let mut handles = Vec::new();
    for n in 0..64 {
        handles.push(drowsy(n).enqueue(&small).await.unwrap());
    }
    let session: String = scalar(&db, "select session_name from runledger.worker").await;
    let count = format!("select count(*) from pg_stat_activity where application_name = '{session}'");
    // Waits in this process also need connections of the pool.
    let waits: Vec<_> = handles
        .iter()
        .map(|handle| {
            let handle = handle.clone();
            tokio::spawn(async move { soon(handle.result()).await.unwrap() })
        })
        .collect();
    let mut most = 0;
    while !waits.iter().all(tokio::task::JoinHandle::is_finished) {
        most = most.max(scalar::<i64>(&db, &count).await);
        tokio::task::yield_now().await;
    }
    // On a busy machine the engine's own statements may keep the pool busy, so that it opens more
    // connections.
    assert!((4..=12).contains(&most), "{most} connections");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_reconnects_after_all_its_sessions_are_terminated() {
    let Fixture { db, database } = Fixture::new().await;
    let own = Db::connect(database.url()).await.unwrap();
    let worker = worker(&own, jobs![drowsy]).await;
    let session: String = scalar(&db, "select session_name from runledger.worker").await;
    let mut handles = Vec::new();
    for n in 0..20 {
        handles.push((n, drowsy(n).enqueue(&db).await.unwrap()));
    }
    until(&db, handles[19].1.id(), |info| info.state == RunState::Running).await;
    execute(
        &db,
        &format!(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = '{session}'"
        ),
    )
    .await;
    for (n, handle) in &handles {
        assert_eq!(soon(handle.result()).await.unwrap(), 2 * n);
    }
    let n_steps: i64 = scalar(&db, "select count(*) from runledger.step").await;
    assert_eq!(n_steps, 20 * 3);
    worker.stop().await;
}

static ROUND: AtomicUsize = AtomicUsize::new(0);

/// Blocks its thread until its round is over.
#[job]
async fn blocks_for_a_round(round: usize) -> Result<()> {
    while ROUND.load(Ordering::Acquire) == round {
        std::thread::park_timeout(Duration::from_millis(20));
    }
    Ok(())
}

#[workflow]
async fn waits_for_a_round(wf: &Wf, round: usize) -> Result<()> {
    Ok(wf.start(blocks_for_a_round(round)).await?.result().await?)
}

async fn block_thread_in_each_round() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![waits_for_a_round, blocks_for_a_round, blocking_bystander]).await;
    let n_blocked = "select count(*) from runledger.lease join runledger.run using (run_id) where job = 'blocks_for_a_round'";
    for round in 0..40 {
        let blocked = waits_for_a_round(round).enqueue(&db).await.unwrap();
        eventually(async || scalar::<i64>(&db, n_blocked).await, |n| *n == 1).await;
        soon(blocking_bystander().enqueue(&db).await.unwrap().result()).await.unwrap();
        ROUND.store(round + 1, Ordering::Release);
        soon(blocked.result()).await.unwrap();
    }
    worker.stop().await;
}

/// The blocked thread may be the one that polled the runtime's I/O driver. Without a wake-up from
/// outside, the other threads then sleep until that thread is free, and so do the client's. This
/// test therefore waits outside the runtime.
#[test]
fn handler_blocking_one_thread_does_not_stop_other_threads() {
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
        runtime.unwrap().block_on(block_thread_in_each_round());
        ended.send(()).unwrap();
    });
    end.recv_timeout(runledger_tests::PATIENCE).unwrap();
}

static HEEDED: AtomicBool = AtomicBool::new(false);

/// Blocks its thread despite a cancel, and returns an output in the end.
#[job]
async fn blocks_through_its_cancel() -> Result<u32> {
    while !HEEDED.load(Ordering::Acquire) {
        std::thread::park_timeout(Duration::from_millis(20));
    }
    Ok(7)
}

#[workflow]
async fn waits_for_what_blocks(wf: &Wf) -> Result<u32> {
    Ok(wf.start(blocks_through_its_cancel()).await?.result().await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cancelled_run_ends_while_its_body_blocks() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let app = App::new(db.clone()).with(jobs![waits_for_what_blocks, blocks_through_its_cancel]);
    let worker = app.timings(Timings::FAST).cancel_grace(Duration::ZERO).start().await.unwrap();
    let parent = waits_for_what_blocks().enqueue(&db).await.unwrap();
    let blocked = "select run_id from runledger.lease join runledger.run using (run_id) where job = 'blocks_through_its_cancel'";
    let begun =
        async || sqlx::query_scalar::<_, uuid::Uuid>(blocked).fetch_optional(db.pool()).await.unwrap();
    let run_id = eventually(begun, Option::is_some).await.unwrap();
    let child = RunHandle::attach(blocks_through_its_cancel, &db, run_id);
    child.cancel("too long").await.unwrap();
    let info = until(&db, run_id, |info| info.state == RunState::Cancelled).await;
    assert!(info.error.unwrap().message.ends_with("too long"));
    let error = soon(parent.result()).await.unwrap_err();
    assert!(matches!(error, ClientError::RunFailed { .. }), "its parent is woken: {error}");
    HEEDED.store(true, Ordering::Release);
    worker.stop().await;
    assert_eq!(child.state().await.unwrap(), RunState::Cancelled, "its late output changes nothing");
}

static LET_GO: AtomicBool = AtomicBool::new(false);

/// Releases the blocking body when the test ends, even by a panic.
struct LetGo;

impl Drop for LetGo {
    fn drop(&mut self) {
        LET_GO.store(true, Ordering::Release);
    }
}

#[job]
async fn blocks_with_a_locked_lease() -> Result<()> {
    while !LET_GO.load(Ordering::Acquire) {
        std::thread::park_timeout(Duration::from_millis(20));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn locked_lease_of_cancelled_run_delays_no_other_maintenance() {
    const HOUR: Duration = Duration::from_secs(3600);
    let Fixture { db, database } = Fixture::new().await;
    let app = App::new(db.clone()).with(jobs![blocks_with_a_locked_lease, blocking_bystander]);
    let worker = app.timings(Timings::FAST).cancel_grace(Duration::ZERO).start().await.unwrap();
    let let_go = LetGo;
    let run = blocks_with_a_locked_lease().enqueue(&db).await.unwrap();
    until(&db, run.id(), |info| info.state == RunState::Running).await;
    let mut holder = database.connect().await.unwrap();
    let mut tx = holder.begin().await.unwrap();
    sqlx::query("select from runledger.lease for update").execute(&mut *tx).await.unwrap();
    run.cancel("too long").await.unwrap();
    let waits_long = "select count(*) from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock' and clock_timestamp() - query_start > interval '3 seconds'";
    for _ in 0..2 {
        let overdue = blocking_bystander().delay(HOUR).deadline(HOUR).enqueue(&db).await.unwrap();
        execute(&db, "update runledger.deadline set deadline_at = now() - interval '1 hour'").await;
        let state = async || {
            assert_eq!(scalar::<i64>(&db, waits_long).await, 0, "maintenance waits for the lease");
            overdue.state().await.unwrap()
        };
        eventually(state, |state| state.is_terminal()).await;
    }
    execute(&db, COUNT_HEARTBEATS).await;
    tx.rollback().await.unwrap();
    until(&db, run.id(), |info| info.state == RunState::Cancelled).await;
    let n_heartbeats: i64 = scalar(&db, "select count(*) from public.beats").await;
    assert!(n_heartbeats <= 5, "maintenance tried again after {n_heartbeats} heartbeats");
    drop(let_go);
    worker.stop().await;
}

const COUNT_HEARTBEATS: &str = "
    create table public.beats (at timestamptz not null default clock_timestamp());
    create function public.count_beat() returns trigger language plpgsql as $$
    begin
        insert into public.beats default values;
        return new;
    end $$;
    create trigger count_beat before update of heartbeat_at on runledger.worker
        for each row execute function public.count_beat()";
