//! Behaviours 12 and 21: what consumes an attempt, what happens to a run that keeps killing its
//! process, and which records remain.

use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use runledger::prelude::*;
use runledger::{AttemptInfo, ClientError, FailureKind, RunInfo, RunState, Timings, Worker};
use runledger_tests::crashing::{self, kills_its_process};
use runledger_tests::{Fixture, PATIENCE, eventually};
use tokio::sync::Semaphore;
use uuid::Uuid;

#[workflow(max_attempts = 1)]
async fn attempts_suspends(wf: &Wf, #[inject] context: &Context) -> Result<u32> {
    // A run stays resident for a sleep that ends soon after it is recorded.
    wf.sleep(Duration::from_secs(2)).await?;
    let child = wf.start(attempts_number()).await?;
    let of_child = child.result().await?;
    wf.step("last", || async { Ok::<_, Error>(()) }).await?;
    Ok(of_child.max(context.attempt()))
}

#[job(max_attempts = 1)]
async fn attempts_number(#[inject] context: &Context) -> Result<u32> {
    Ok(context.attempt())
}

/// Reports that a body has started, and blocks it.
#[derive(Clone, Debug)]
struct Door {
    entered: Arc<Semaphore>,
    door: Arc<Semaphore>,
}

impl Door {
    fn closed() -> Self {
        Self { entered: Arc::new(Semaphore::new(0)), door: Arc::new(Semaphore::new(0)) }
    }

    async fn reached(&self) {
        tokio::time::timeout(PATIENCE, self.entered.acquire()).await.unwrap().unwrap().forget();
    }
}

#[job(max_attempts = 1)]
async fn attempts_waits(#[inject] context: &Context, #[inject] door: &Door) -> Result<u32> {
    door.entered.add_permits(1);
    door.door.acquire().await?.forget();
    Ok(context.attempt())
}

#[derive(Debug, thiserror::Error)]
#[error("the card was refused")]
struct Refused(#[source] std::io::Error);

fn refused() -> Refused {
    Refused(std::io::Error::other("the bank is closed"))
}

#[job(max_attempts = 3, backoff = "1ms..1ms")]
async fn attempts_third_time(#[inject] context: &Context) -> Result<String> {
    if context.attempt() < 3 { Err(refused())? } else { Ok("charged".to_owned()) }
}

#[job(max_attempts = 2, backoff = "1ms..1ms")]
async fn attempts_never() -> Result<String> {
    Err(anyhow::Error::new(refused()).context("charging order 7"))?
}

#[workflow]
async fn attempts_of_a_step(wf: &Wf) -> Result<()> {
    let step = wf.step("charge", || async { Err::<(), Error>(refused().into()) });
    let moment = Duration::from_millis(1);
    Ok(step.max_attempts(3).backoff(moment, moment).await?)
}

const CHAIN: &str = "the card was refused: the bank is closed";

/// Starts a process that its job kills once, and waits until it has died.
async fn crash_once(db: &Db, database: &str) {
    let mut child = crashing::start(env!("CARGO_BIN_EXE_crashing"), database).unwrap();
    wait_for_the_end_of(&mut child, db).await;
}

/// Waits until the process has died. Runs that wait after a crash are made due at once.
async fn wait_for_the_end_of(child: &mut Child, db: &Db) {
    let began = std::time::Instant::now();
    while child.try_wait().unwrap().is_none() {
        let hurry = "with hurried as (update runledger.ready set ready_at = now() where cause = 'crashed' and ready_at > now() returning 1)
                     select pg_notify('runledger_ready', '') from hurried";
        sqlx::query(hurry).execute(db.pool()).await.unwrap();
        assert!(began.elapsed() < PATIENCE, "the process has not died");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Serves the job that kills processes, in a process that the job does not kill.
async fn take_over(db: &Db) -> Worker {
    let app = App::new(db.clone()).with(jobs![kills_its_process]).timings(Timings::FAST);
    app.name(crashing::NAME).start().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn crash_does_not_consume_attempt_and_is_counted_separately() {
    let Fixture { db, database } = Fixture::new().await;
    let run = kills_its_process().enqueue(&db).await.unwrap();
    crash_once(&db, database.url()).await;
    crash_once(&db, database.url()).await;
    let info = run.info().await.unwrap();
    assert_eq!((info.state, info.attempt, info.crashes), (RunState::Running, 1, 1));
    let worker = take_over(&db).await;
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), 1);
    assert_eq!(run.info().await.unwrap().attempt, 1);
    worker.stop().await;
    let attempts = run.attempts().await.unwrap();
    let kinds: Vec<_> = attempts.iter().map(|tried| tried.error.as_ref().map(|error| error.kind)).collect();
    assert_eq!(kinds, [Some(FailureKind::Crash), Some(FailureKind::Crash), None]);
    assert!(attempts.iter().all(|tried| tried.attempt == 1 && tried.started_at.is_some()), "{attempts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn run_crashing_its_process_five_times_is_blocked_until_resumed() {
    let Fixture { db, database } = Fixture::new().await;
    let run = kills_its_process().enqueue(&db).await.unwrap();
    for _ in 0..5 {
        crash_once(&db, database.url()).await;
    }
    let worker = take_over(&db).await;
    let info = eventually(async || run.info().await.unwrap(), |info| info.state == RunState::Blocked).await;
    let RunInfo { attempt, crashes, error, .. } = info;
    let error = error.unwrap();
    assert_eq!((attempt, crashes, error.kind), (0, 5, FailureKind::Crash));
    assert!(error.message.contains("5 times in a row while it executed this run"), "{error}");
    let refused = run.result_within(PATIENCE).await;
    assert!(matches!(refused, Err(ClientError::RunBlocked { failure, .. }) if failure == error));
    run.resume().await.unwrap();
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn suspension_does_not_consume_attempt() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = App::new(db.clone()).with(jobs![attempts_suspends, attempts_number]).start().await.unwrap();
    let run = attempts_suspends().enqueue(&db).await.unwrap();
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), 1);
    let steps = run.steps().await.unwrap();
    assert!(steps[3].claim >= 2, "the run did not leave its worker: {steps:?}");
    assert_eq!(run.info().await.unwrap().attempt, 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_does_not_consume_attempt() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let door = Door::closed();
    let app = || App::new(db.clone()).with(jobs![attempts_waits]).provide(door.clone());
    let run = attempts_waits().enqueue(&db).await.unwrap();
    let worker = app().drain(Duration::ZERO).start().await.unwrap();
    door.reached().await;
    worker.stop().await;
    let info = run.info().await.unwrap();
    assert_eq!((info.state, info.attempt, info.crashes), (RunState::Queued, 0, 0));
    assert_eq!(info.cause.as_deref(), Some("released"));
    door.door.add_permits(1);
    let worker = app().start().await.unwrap();
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), 1);
    worker.stop().await;
}

async fn serve(db: &Db) -> Worker {
    let jobs = jobs![attempts_third_time, attempts_never, attempts_of_a_step];
    App::new(db.clone()).with(jobs).name("reader").start().await.unwrap()
}

/// Checks the number, the worker and the times of each attempt.
fn check(attempts: &[AttemptInfo], worker_id: i64, submitted: SystemTime) {
    let mut earliest = submitted;
    for (attempt, number) in attempts.iter().zip(1..) {
        assert_eq!((attempt.attempt, attempt.worker_id), (number, worker_id));
        assert_eq!(attempt.worker.as_deref(), Some("reader"));
        let started = attempt.started_at.unwrap();
        assert!(earliest <= started && started <= attempt.ended_at, "{attempt:?}");
        earliest = attempt.ended_at;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn completed_run_reports_result_and_details_of_each_attempt() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = serve(&db).await;
    let run = attempts_third_time().enqueue(&db).await.unwrap();
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), "charged");
    let (attempts, info) = (run.attempts().await.unwrap(), run.info().await.unwrap());
    check(&attempts, worker.id(), info.created_at);
    worker.stop().await;
    let errors: Vec<_> =
        attempts.iter().map(|attempt| attempt.error.as_ref().map(ToString::to_string)).collect();
    assert_eq!(errors, [Some(CHAIN.to_owned()), Some(CHAIN.to_owned()), None]);
    assert_eq!((info.state, info.attempt, info.error), (RunState::Completed, 3, None));
    assert_eq!((info.started_at, info.finished_at), (attempts[2].started_at, Some(attempts[2].ended_at)));
    assert_eq!(run.result().await.unwrap(), "charged");
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_run_reports_error_with_its_causes() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = serve(&db).await;
    let run = attempts_never().enqueue(&db).await.unwrap();
    let Err(ClientError::RunFailed { failure, run_id }) = run.result_within(PATIENCE).await else {
        panic!("it did not fail")
    };
    let (attempts, info) = (run.attempts().await.unwrap(), run.info().await.unwrap());
    check(&attempts, worker.id(), info.created_at);
    worker.stop().await;
    assert_eq!(
        (run_id, failure.kind, failure.message.as_str()),
        (run.id(), FailureKind::Error, "charging order 7")
    );
    assert_eq!(failure.causes, ["the card was refused", "the bank is closed"]);
    assert_eq!(attempts.iter().filter(|attempt| attempt.error.as_ref() == Some(&failure)).count(), 2);
    assert_eq!((info.state, info.attempt, info.error), (RunState::Failed, 2, Some(failure)));
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_step_attempts_remain_readable_with_errors() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = serve(&db).await;
    let run = attempts_of_a_step().enqueue(&db).await.unwrap();
    assert!(matches!(run.result_within(PATIENCE).await, Err(ClientError::RunFailed { .. })));
    let attempts = run.attempts().await.unwrap();
    let (tries, own): (Vec<_>, Vec<_>) =
        attempts.into_iter().partition(|attempt| attempt.step_key == "charge");
    check(&own, worker.id(), run.info().await.unwrap().created_at);
    // The error of the step's last attempt is recorded as its result.
    check(&tries, worker.id(), SystemTime::UNIX_EPOCH);
    worker.stop().await;
    assert_eq!((tries.len(), own.len()), (2, 1));
    assert!(
        tries.iter().all(|attempt| attempt.error.as_ref().is_some_and(|error| error.to_string() == CHAIN))
    );
    let recorded = run.steps().await.unwrap().remove(0).result.unwrap_err();
    assert_eq!(recorded.to_string(), CHAIN);
    let error = own[0].error.as_ref().unwrap().to_string();
    assert_eq!(error, format!("step `charge` failed: {CHAIN}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_run_has_no_attempts_and_its_result_is_refused() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let nobody = RunHandle::attach(attempts_never, &db, Uuid::now_v7());
    assert!(matches!(nobody.result().await, Err(ClientError::NoSuchRun { .. })));
    assert!(nobody.attempts().await.unwrap().is_empty());
}
