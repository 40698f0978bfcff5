//! Panics outside of a body's normal course: in destructors, in panic payloads, in closures before
//! their futures, and in code of the program that engine tasks call. None loses a run, a slot or
//! the worker.

use std::future::pending;
use std::panic::panic_any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use runledger::prelude::*;
use runledger::{ClientError, FailureKind, RunState, Timings};
use runledger_tests::rows::{execute, scalar, until};
use runledger_tests::{Fixture, PATIENCE};
use tokio::sync::{Notify, watch};
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context as LayerContext, Layer, SubscriberExt};

/// Panics on drop, unless the thread is already panicking.
struct Thorn;

impl Drop for Thorn {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "a thorn in the destructor");
    }
}

#[job(timeout = "20ms", max_attempts = 1)]
async fn panics_when_timed_out() -> Result<()> {
    let _thorn = Thorn;
    pending().await
}

#[job(max_attempts = 1)]
async fn panics_when_cancelled(#[inject] begun: &Arc<Notify>) -> Result<()> {
    let _thorn = Thorn;
    begun.notify_one();
    pending().await
}

#[job(max_attempts = 1)]
async fn panics_with_a_thorn(really: bool) -> Result<()> {
    if really {
        panic_any(Thorn);
    }
    Ok(())
}

#[workflow]
async fn times_out_a_step(wf: &Wf) -> Result<String> {
    let failed = wf.run(panics_when_timed_out()).await.expect_err("it does not end");
    Ok(failed.failure().message.clone())
}

#[workflow]
async fn closure_panics(wf: &Wf, bad: bool) -> Result<String> {
    let step = wf.step("early", || {
        assert!(!bad, "in the closure");
        async { Ok::<(), Error>(()) }
    });
    let failed = step.max_attempts(1).await.expect_err("it panics");
    Ok(failed.failure().to_string())
}

#[job]
async fn innocent(n: u64) -> Result<u64> {
    Ok(n)
}

/// Reports its start, and ends when the gate is open.
#[job]
async fn gated(#[inject] begun: &Arc<Notify>, #[inject] gate: &watch::Sender<bool>) -> Result<()> {
    begun.notify_one();
    gate.subscribe().wait_for(|open| *open).await?;
    Ok(())
}

/// Starts a worker with one slot, so that a lost slot is noticed.
async fn worker(fixture: &Fixture, begun: &Arc<Notify>, gate: watch::Sender<bool>) -> runledger::Worker {
    let jobs = jobs![
        panics_when_timed_out,
        panics_when_cancelled,
        panics_with_a_thorn,
        times_out_a_step,
        closure_panics,
        gated,
        innocent
    ];
    App::new(fixture.db.clone())
        .with(jobs)
        .concurrency(1)
        .timings(Timings::FAST)
        .provide(Arc::clone(begun))
        .provide(gate)
        .start()
        .await
        .unwrap()
}

fn failure_of<T: std::fmt::Debug>(result: std::result::Result<T, ClientError>) -> runledger::Failure {
    match result {
        Err(ClientError::RunFailed { failure, .. }) => failure,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn destructor_panic_on_timeout_costs_neither_run_nor_slot() {
    let fixture = Fixture::new().await;
    let worker = worker(&fixture, &Arc::default(), watch::Sender::default()).await;
    let timed_out = panics_when_timed_out().enqueue(&fixture.db).await.unwrap();
    let failure = failure_of(timed_out.result_within(PATIENCE).await);
    assert_eq!(failure.kind, FailureKind::Timeout);
    assert!(failure.causes.iter().any(|cause| cause.contains("a thorn in the destructor")), "{failure:?}");
    let step = times_out_a_step().enqueue(&fixture.db).await.unwrap().result_within(PATIENCE).await.unwrap();
    assert!(step.contains("did not end within its timeout"), "{step}");
    assert_eq!(innocent(1).enqueue(&fixture.db).await.unwrap().result_within(PATIENCE).await.unwrap(), 1);
    worker.stop().await;
}

#[tokio::test]
async fn destructor_panic_on_cancel_costs_neither_run_nor_slot() {
    let fixture = Fixture::new().await;
    let begun = Arc::new(Notify::new());
    let worker = worker(&fixture, &begun, watch::Sender::default()).await;
    let handle = panics_when_cancelled().enqueue(&fixture.db).await.unwrap();
    begun.notified().await;
    handle.cancel("enough").await.unwrap();
    until(&fixture.db, handle.id(), |run| run.state == RunState::Cancelled).await;
    assert_eq!(innocent(2).enqueue(&fixture.db).await.unwrap().result_within(PATIENCE).await.unwrap(), 2);
    worker.stop().await;
}

#[tokio::test]
async fn panic_with_payload_panicking_on_drop_is_ordinary_failure() {
    let fixture = Fixture::new().await;
    let worker = worker(&fixture, &Arc::default(), watch::Sender::default()).await;
    let handle = panics_with_a_thorn(true).enqueue(&fixture.db).await.unwrap();
    let failure = failure_of(handle.result_within(PATIENCE).await);
    assert_eq!(failure.kind, FailureKind::Panic);
    assert_eq!(innocent(3).enqueue(&fixture.db).await.unwrap().result_within(PATIENCE).await.unwrap(), 3);
    worker.stop().await;
}

#[tokio::test]
async fn panic_in_step_closure_before_future_fails_step_attempt() {
    let fixture = Fixture::new().await;
    let worker = worker(&fixture, &Arc::default(), watch::Sender::default()).await;
    let handle = closure_panics(true).enqueue(&fixture.db).await.unwrap();
    let failure = handle.result_within(PATIENCE).await.unwrap();
    assert!(failure.contains("panicked: in the closure"), "{failure}");
    worker.stop().await;
}

/// A subscriber of the program. It panics at the first event whose message begins with `at`.
struct Panicking {
    at: &'static str,
    n_panics: Arc<AtomicUsize>,
}

impl<S: tracing::Subscriber> Layer<S> for Panicking {
    fn on_event(&self, event: &tracing::Event<'_>, _: LayerContext<'_, S>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        if message.0.starts_with(self.at) && self.n_panics.fetch_add(1, Ordering::Relaxed) == 0 {
            panic!("the program's subscriber panics");
        }
    }
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

/// Starts a worker on this thread whose subscriber panics at the first such event. The test uses a
/// second client, because the worker's sessions end.
async fn watched(at: &'static str) -> (Site, tracing::subscriber::DefaultGuard) {
    let n_panics = Arc::new(AtomicUsize::new(0));
    let layer = Panicking { at, n_panics: Arc::clone(&n_panics) };
    // For this thread only. The test's runtime polls all tasks on it; the heartbeat has its own
    // thread.
    let subscriber = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let fixture = Fixture::new().await;
    let begun = Arc::new(Notify::new());
    let gate = watch::Sender::new(false);
    let worker = worker(&fixture, &begun, gate.clone()).await;
    let client = Db::connect(fixture.database.url()).await.unwrap();
    assert_eq!(innocent(4).enqueue(&client).await.unwrap().result_within(PATIENCE).await.unwrap(), 4);
    (Site { fixture, client, worker, begun, gate, n_panics }, subscriber)
}

struct Site {
    fixture: Fixture,
    client: Db,
    worker: runledger::Worker,
    begun: Arc<Notify>,
    gate: watch::Sender<bool>,
    n_panics: Arc<AtomicUsize>,
}

impl Site {
    /// Ends all sessions of the worker.
    async fn cut(&self) {
        let cut = "select count(pg_terminate_backend(pid)) from pg_stat_activity
                   where datname = current_database() and application_name <> current_setting('application_name')";
        let _: i64 = scalar(&self.client, cut).await;
    }

    fn n_panics(&self) -> usize {
        self.n_panics.load(Ordering::Relaxed)
    }

    async fn goes_on(self) {
        assert_eq!(self.n_panics(), 1);
        assert_eq!(
            innocent(5).enqueue(&self.client).await.unwrap().result_within(PATIENCE).await.unwrap(),
            5
        );
        self.worker.stop().await;
        drop(self.fixture);
    }
}

/// Ends all sessions of the worker and hides its schema, so that each of its tasks has an error to
/// report.
async fn goes_on_after_a_panic_at(at: &'static str) {
    let (site, _subscriber) = watched(at).await;
    execute(&site.client, "alter schema runledger rename to away").await;
    // A task without a connection loses none, so cut again. The pauses grow, because a slow machine
    // must report before the next cut.
    let mut pause = Duration::from_millis(50);
    while site.n_panics() == 0 {
        assert!(pause < PATIENCE, "no task has reported anything");
        site.cut().await;
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    execute(&site.client, "alter schema away rename to runledger").await;
    site.goes_on().await;
}

#[tokio::test]
async fn worker_survives_panic_in_claimer() {
    goes_on_after_a_panic_at("a claim failed").await;
}

#[tokio::test]
async fn worker_survives_panic_in_control_task() {
    goes_on_after_a_panic_at("the session lock").await;
}

#[tokio::test]
async fn worker_survives_panic_in_maintenance() {
    goes_on_after_a_panic_at("maintenance fails").await;
}

#[tokio::test]
async fn worker_survives_panic_in_commit_queue_writer() {
    let (site, _subscriber) = watched("the commit queue waits").await;
    // The writer of a run is chosen at random. A writer that never wrote has no connection to lose.
    while site.n_panics() == 0 {
        site.gate.send_replace(false);
        let handle = gated().enqueue(&site.client).await.unwrap();
        site.begun.notified().await;
        site.cut().await;
        site.gate.send_replace(true);
        handle.result_within(PATIENCE).await.unwrap();
    }
    site.goes_on().await;
}
