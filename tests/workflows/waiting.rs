//! Behaviours 22 and 25, for sleeps and cancellation.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use runledger::prelude::*;
use runledger::{Cancelled, ClientError, RunState, Timings};
use runledger_tests::rows::{execute, nets_far_apart, scalar, soon, until, worker, worker_without_polls};
use runledger_tests::{Fixture, eventually};
use sqlx::AssertSqlSafe;
use tokio::sync::Barrier;

#[workflow]
async fn sleeps_long(wf: &Wf, millis: u64) -> Result<u64> {
    wf.sleep(Duration::from_millis(millis)).await?;
    Ok(millis)
}

#[job]
async fn quick() -> Result<u64> {
    Ok(1)
}

#[tokio::test(flavor = "multi_thread")]
async fn sleeping_workflow_frees_its_slot_for_another_run() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let app = App::new(db.clone()).with(jobs![sleeps_long, quick]).timings(Timings::FAST);
    let worker = app.concurrency(1).start().await.unwrap();
    let sleeper = sleeps_long(600_000).enqueue(&db).await.unwrap();
    until(&db, sleeper.id(), |info| info.cause.as_deref() == Some("slept")).await;
    let n_leases: i64 = scalar(&db, "select count(*) from runledger.lease").await;
    assert_eq!(n_leases, 0);
    for _ in 0..3 {
        assert_eq!(soon(quick().enqueue(&db).await.unwrap().result()).await.unwrap(), 1);
    }
    let info = sleeper.info().await.unwrap();
    assert_eq!((info.state, info.attempt), (RunState::Queued, 0), "a sleep consumes no attempt");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sleeping_run_resumes_at_recorded_instant_and_not_before() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker_without_polls(&db, jobs![sleeps_long]).await;
    let handle = sleeps_long(4000).enqueue(&db).await.unwrap();
    let asleep = until(&db, handle.id(), |info| info.cause.as_deref() == Some("slept")).await;
    let due = asleep.ready_at.unwrap();
    let recorded = handle.steps().await.unwrap()[0].result.clone().unwrap();
    let micros = due.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros();
    assert_eq!(recorded, micros.to_string(), "the instant is recorded");
    assert_eq!(soon(handle.result()).await.unwrap(), 4000);
    let info = handle.info().await.unwrap();
    info.started_at.unwrap().duration_since(due).expect("it never wakes early");
    worker.stop().await;
}

#[workflow]
async fn sleeps_and_waits(wf: &Wf) -> Result<u64> {
    wf.sleep(Duration::from_millis(50)).await?;
    wf.run(quick()).await?;
    Ok(wf.signal("go-on").await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_sleep_stays_finished_when_clock_is_set_back() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![sleeps_and_waits, quick]).await;
    let handle = sleeps_and_waits().enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
    // Simulates a clock that was an hour ahead when the run began to sleep.
    execute(
        &db,
        "update runledger.step set output = (output::text::bigint + 3600000000)::text::json where key = 'sleep'",
    )
    .await;
    handle.signal("go-on", &7_u64).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 7);
    worker.stop().await;
}

/// Returns how late the workflow woke by its own time, in microseconds. Negative if it woke too
/// early.
#[workflow]
async fn sleeps_until(wf: &Wf, instant: SystemTime) -> Result<i64> {
    wf.sleep_until(instant).await?;
    let late = wf.now().duration_since(instant).map_err(|early| early.duration());
    let micros = |duration: Duration| i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
    Ok(late.map_or_else(|early| -micros(early), micros))
}

#[tokio::test(flavor = "multi_thread")]
async fn sleep_until_follows_database_clock_and_never_wakes_early() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![sleeps_until]).await;
    let now: i64 = scalar(&db, "select (extract(epoch from clock_timestamp()) * 1000000)::bigint").await;
    // One nanosecond is more precise than any time of the database.
    let instant = SystemTime::UNIX_EPOCH
        + Duration::from_micros(now.unsigned_abs() + 4_000_000)
        + Duration::from_nanos(1);
    let handle = sleeps_until(instant).enqueue(&db).await.unwrap();
    let asleep = until(&db, handle.id(), |info| info.cause.as_deref() == Some("slept")).await;
    assert_eq!(asleep.ready_at, Some(instant + Duration::from_nanos(999)));
    let late = soon(handle.result()).await.unwrap();
    assert!(late >= 0, "{late} µs: it woke early");
    worker.stop().await;
}

#[workflow]
async fn sleeps_until_the_past(wf: &Wf) -> Result<()> {
    wf.sleep_until(SystemTime::UNIX_EPOCH).await?;
    Ok(wf.sleep_until(SystemTime::UNIX_EPOCH - Duration::from_micros(5)).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn sleep_until_past_instant_is_recorded_without_suspending_run() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![sleeps_until_the_past]).await;
    let handle = sleeps_until_the_past().enqueue(&db).await.unwrap();
    soon(handle.result()).await.unwrap();
    let steps = handle.steps().await.unwrap();
    let recorded = steps.iter().map(|step| (step.key.as_str(), step.result.as_deref().unwrap()));
    assert_eq!(recorded.collect::<Vec<_>>(), [("sleep_until", "0"), ("sleep_until#2", "-5")]);
    assert_eq!(
        scalar::<i32>(&db, "select max(claims) from runledger.step").await,
        1,
        "it never left its worker"
    );
    worker.stop().await;
}

#[workflow]
async fn sleeps_too_far(wf: &Wf, instant: SystemTime) -> Result<String> {
    let refused = wf.sleep_until(instant).await.unwrap_err();
    wf.sleep(Duration::from_secs(4)).await?; // then the refusal is read from the record
    Ok(refused.failure().to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn sleep_until_beyond_hundred_years_fails_identically_on_replay() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![sleeps_too_far]).await;
    let instant = SystemTime::now() + Duration::from_secs(120 * 365 * 24 * 60 * 60);
    let handle = sleeps_too_far(instant).enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.cause.as_deref() == Some("slept")).await;
    let refused = soon(handle.result()).await.unwrap();
    assert!(refused.contains("years from now is further away than the 100 that are allowed"), "{refused}");
    let steps = handle.steps().await.unwrap();
    assert_eq!(steps[0].result.as_ref().unwrap_err().to_string(), refused);
    worker.stop().await;
}

#[workflow]
async fn naps(wf: &Wf, n: u32) -> Result<u32> {
    for _ in 0..n {
        wf.sleep(Duration::from_millis(320)).await?;
    }
    Ok(n)
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_suspensions_consume_no_attempt() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![naps]).await;
    let handle = naps(20).max_attempts(1).enqueue(&db).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 20);
    let info = handle.info().await.unwrap();
    assert_eq!((info.attempt, info.crashes), (1, 0));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queued_or_sleeping_run_is_cancelled_immediately() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let queued = quick().enqueue(&db).await.unwrap();
    assert_eq!(queued.cancel("not needed").await.unwrap(), Cancelled::Now);
    assert_eq!(queued.cancel("again").await.unwrap(), Cancelled::AlreadyEnded(RunState::Cancelled));
    let error = queued.result().await.unwrap_err();
    let ClientError::RunCancelled { failure, .. } = error else { panic!("{error}") };
    assert!(failure.message.contains("not needed"), "{failure}");

    let worker = worker(&db, jobs![sleeps_long]).await;
    let asleep = sleeps_long(600_000).enqueue(&db).await.unwrap();
    until(&db, asleep.id(), |info| info.cause.as_deref() == Some("slept")).await;
    assert_eq!(asleep.cancel("woken").await.unwrap(), Cancelled::Now);
    assert!(matches!(asleep.result().await, Err(ClientError::RunCancelled { .. })));
    let n_left: i64 = scalar(&db, "select count(*) from runledger.ready").await;
    assert_eq!(n_left, 0);
    worker.stop().await;
}

static DROPPED: AtomicUsize = AtomicUsize::new(0);

struct CountsItsDrop;

impl Drop for CountsItsDrop {
    fn drop(&mut self) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

#[workflow]
async fn runs_for_ever(wf: &Wf) -> Result<()> {
    let step = wf.step("for-ever", || async {
        let _guard = CountsItsDrop;
        std::future::pending::<Result<()>>().await
    });
    step.await.map_err(Into::into)
}

#[tokio::test(flavor = "multi_thread")]
async fn sleeping_run_with_unnoticed_cancel_request_is_cancelled() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![sleeps_long]).await;
    let sleeper = sleeps_long(600_000).enqueue(&db).await.unwrap();
    until(&db, sleeper.id(), |info| info.cause.as_deref() == Some("slept")).await;
    // Simulates a cancel that was requested while the run was claimed: the request stays, and
    // nothing notifies a worker of it any more.
    execute(
        &db,
        "insert into runledger.cancel (run_id, reason) select run_id, 'too dear' from runledger.run",
    )
    .await;
    let info = until(&db, sleeper.id(), |info| info.state.is_terminal()).await;
    assert_eq!(info.state, RunState::Cancelled);
    assert_eq!(info.error.unwrap().message, "cancelled: too dear");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn running_run_is_cancelled_and_its_body_dropped() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![runs_for_ever]).await;
    let handle = runs_for_ever().enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Running).await;
    assert_eq!(handle.cancel("enough").await.unwrap(), Cancelled::Requested);
    let error = soon(handle.result()).await.unwrap_err();
    let ClientError::RunCancelled { failure, .. } = error else { panic!("{error}") };
    assert!(failure.message.contains("enough"), "the reason is kept: {failure}");
    assert_eq!(DROPPED.load(Ordering::Relaxed), 1);
    let requests = async || scalar::<i64>(&db, "select count(*) from runledger.cancel").await;
    eventually(requests, |n_requests| *n_requests == 0).await;
    worker.stop().await;
}

/// Returns the sessions that listen for the ends of runs.
async fn listeners(db: &Db) -> Vec<i32> {
    let query = "select coalesce(array_agg(pid), '{}') from pg_stat_activity
                 where datname = current_database() and query = 'LISTEN \"runledger_ended\"'";
    scalar(db, query).await
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_client_replaces_listener_lost_with_another_runtime() {
    let Fixture { db, database } = Fixture::new().await;
    let (first, second) = (quick().enqueue(&db).await.unwrap(), quick().enqueue(&db).await.unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let url = database.url().to_owned();
    runtime.spawn(async move {
        let db = Db::connect(&url).await.unwrap();
        let _ = RunHandle::attach(quick, &db, first.id()).result().await;
    });
    let before = eventually(async || listeners(&db).await, |pids| pids.len() == 1).await;
    let waiter = tokio::spawn(async move { second.result().await });
    eventually(
        async || scalar::<i64>(&db, "select count(*) from runledger.completion_watch").await,
        |n| *n == 2,
    )
    .await;
    runtime.shutdown_background();
    let after = eventually(async || listeners(&db).await, |pids| pids.len() == 1 && *pids != before).await;
    assert_ne!(after, before);
    let worker = worker(&db, jobs![quick]).await;
    assert_eq!(soon(waiter).await.unwrap().unwrap(), 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_committed_after_worker_falls_asleep_is_found_before_poll() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker_without_polls(&db, jobs![quick]).await;
    for _ in 0..5 {
        soon(quick().enqueue(&db).await.unwrap().result()).await.unwrap();
        // The worker is awake at the enqueue, which therefore notifies nobody, and asleep at the
        // commit.
        let mut tx = db.begin().await.unwrap();
        let run = quick().enqueue(&mut tx).await.unwrap().with_db(&db);
        let sleeping = "select sleeping from runledger.worker";
        eventually(async || scalar::<bool>(&db, sleeping).await, |sleeping| *sleeping).await;
        tx.commit().await.unwrap();
        soon(run.result()).await.unwrap();
    }
    worker.stop().await;
}

static SNAPSHOT: LazyLock<Barrier> = LazyLock::new(|| Barrier::new(2));

/// Ends with a snapshot that is older than its parent's wait.
#[job]
async fn ends_with_an_old_snapshot(level: String, #[inject] tx: &mut Tx) -> Result<u64> {
    sqlx::raw_sql(AssertSqlSafe(format!("set transaction isolation level {level}; select 1")))
        .execute(&mut **tx)
        .await?;
    SNAPSHOT.wait().await;
    SNAPSHOT.wait().await;
    Ok(1)
}

static WATCHED: LazyLock<Barrier> = LazyLock::new(|| Barrier::new(2));

#[job]
async fn ends_with_a_later_snapshot(#[inject] tx: &mut Tx) -> Result<()> {
    sqlx::raw_sql("set transaction isolation level repeatable read; select 1").execute(&mut **tx).await?;
    WATCHED.wait().await;
    WATCHED.wait().await;
    Ok(())
}

#[workflow]
async fn waits_for_an_old_snapshot(wf: &Wf, level: String) -> Result<u64> {
    let child = wf.start(ends_with_an_old_snapshot(level)).await?;
    wf.step("snapshot", || async {
        SNAPSHOT.wait().await;
        Ok::<_, Error>(())
    })
    .await?;
    Ok(child.result().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn child_with_snapshot_older_than_parents_wait_wakes_parent() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let app = App::new(db.clone()).with(jobs![waits_for_an_old_snapshot, ends_with_an_old_snapshot]);
    let worker = app.timings(nets_far_apart()).start().await.unwrap();
    for level in ["repeatable read", "serializable"] {
        let parent = waits_for_an_old_snapshot(level.to_owned()).enqueue(&db).await.unwrap();
        until(&db, parent.id(), |info| info.state == RunState::Waiting).await;
        soon(SNAPSHOT.wait()).await;
        assert_eq!(soon(parent.result()).await.unwrap(), 1, "{level}");
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_watching_after_run_snapshot_is_notified_of_its_end() {
    let Fixture { db, database } = Fixture::new().await;
    let worker = worker(&db, jobs![ends_with_a_later_snapshot]).await;
    let mut listener = sqlx::postgres::PgListener::connect(database.url()).await.unwrap();
    listener.listen("runledger_ended").await.unwrap();
    let run = ends_with_a_later_snapshot().enqueue(&db).await.unwrap();
    soon(WATCHED.wait()).await;
    execute(&db, &format!("insert into runledger.completion_watch (run_id) values ('{}')", run.id())).await;
    soon(WATCHED.wait()).await;
    assert_eq!(soon(listener.recv()).await.unwrap().payload(), run.id().to_string());
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.completion_watch").await, 0);
    worker.stop().await;
}
