//! Observers: they receive committed events of attempts, and never delay a run.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use runledger::prelude::*;
use runledger::{AttemptEvent, Definition, Failure, Graph, Observer, RunState, Timings, Worker, enqueue_all};
use runledger_tests::proxy::{Fault, Proxy};
use runledger_tests::rows::{execute, scalar, soon, take_away, until};
use runledger_tests::{Fixture, eventually};
use tokio::runtime::Handle as Runtime;
use tokio::sync::Semaphore;
use uuid::Uuid;

const HOUR: Duration = Duration::from_secs(3600);

/// An event that an observer received, and the state of the run at that time.
#[derive(Clone, Debug)]
struct Told {
    event: &'static str,
    attempt: AttemptEvent,
    state: RunState,
    failure: Option<String>,
    delay: Option<Duration>,
}

/// Records each event together with the state of the run in the database.
#[derive(Clone)]
struct Recorder {
    db: Db,
    runtime: Runtime,
    told: Arc<Mutex<Vec<Told>>>,
}

impl Recorder {
    fn new(db: &Db) -> Self {
        Self { db: db.clone(), runtime: Runtime::current(), told: Arc::default() }
    }

    fn note(
        &self,
        event: &'static str,
        attempt: &AttemptEvent,
        failure: Option<&Failure>,
        delay: Option<Duration>,
    ) {
        let info = self.runtime.block_on(self.db.run(attempt.run_id).info()).unwrap();
        let failure = failure.map(ToString::to_string);
        let told = Told { event, attempt: attempt.clone(), state: info.state, failure, delay };
        self.told.lock().unwrap().push(told);
    }

    /// Returns the events of a run, by attempt.
    fn of(&self, run_id: Uuid) -> Vec<Told> {
        let told = self.told.lock().unwrap();
        let mut told: Vec<_> = told.iter().filter(|told| told.attempt.run_id == run_id).cloned().collect();
        // The start of an attempt may be reported before the end of the previous one.
        told.sort_by_key(|told| told.attempt.started_at);
        told
    }

    /// Waits until a run has these events, each with its attempt number.
    async fn until(&self, run_id: Uuid, events: &[(&str, u32)]) -> Vec<Told> {
        let all = eventually(async || self.of(run_id), |told| told.len() >= events.len()).await;
        let told: Vec<_> = all.iter().map(|told| (told.event, told.attempt.attempt)).collect();
        assert_eq!(told, events, "{all:?}");
        all
    }

    /// As [`until`](Self::until). Then checks the state of the run at the last event.
    async fn ended(&self, run_id: Uuid, events: &[(&str, u32)], state: RunState) -> Told {
        let last = self.until(run_id, events).await.pop().unwrap();
        assert_eq!(last.state, state, "{last:?}");
        last
    }
}

impl Observer for Recorder {
    fn started(&self, attempt: &AttemptEvent) {
        self.note("started", attempt, None, None);
    }

    fn completed(&self, attempt: &AttemptEvent) {
        self.note("completed", attempt, None, None);
    }

    fn retried(&self, attempt: &AttemptEvent, failure: &Failure, delay: Duration) {
        self.note("retried", attempt, Some(failure), Some(delay));
    }

    fn failed(&self, attempt: &AttemptEvent, failure: &Failure) {
        self.note("failed", attempt, Some(failure), None);
    }

    fn cancelled(&self, attempt: &AttemptEvent) {
        self.note("cancelled", attempt, None, None);
    }

    fn compensating(&self, attempt: &AttemptEvent) {
        self.note("compensating", attempt, None, None);
    }

    fn waiting(&self, attempt: &AttemptEvent) {
        self.note("waiting", attempt, None, None);
    }

    fn continued(&self, attempt: &AttemptEvent, delay: Duration) {
        self.note("continued", attempt, None, Some(delay));
    }

    fn paused(&self, attempt: &AttemptEvent) {
        self.note("paused", attempt, None, None);
    }

    fn released(&self, attempt: &AttemptEvent) {
        self.note("released", attempt, None, None);
    }

    fn blocked(&self, attempt: &AttemptEvent, failure: &Failure) {
        self.note("blocked", attempt, Some(failure), None);
    }

    fn superseded(&self, attempt: &AttemptEvent) {
        self.note("lost", attempt, None, None);
    }
}

fn app<const N: usize>(db: &Db, jobs: [&'static Definition; N]) -> App {
    App::new(db.clone()).with(jobs).timings(Timings::FAST).idle_residency(Duration::ZERO)
}

async fn observed<const N: usize>(db: &Db, jobs: [&'static Definition; N]) -> (Worker, Recorder) {
    let recorder = Recorder::new(db);
    (app(db, jobs).name("observed").observe(recorder.clone()).start().await.unwrap(), recorder)
}

#[job(max_attempts = 2, backoff = "1ms..1ms")]
async fn ends(how: String) -> Result<()> {
    match how.as_str() {
        "well" => Ok(()),
        "badly" => Err("no carrier".into()),
        "at once" => Err(Error::terminal("no such order")),
        _ => Err(Error::retry_after("not yet", HOUR)),
    }
}

#[job]
async fn writes(#[inject] tx: &mut Tx) -> Result<()> {
    let _ = tx;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn observer_receives_end_of_each_attempt_after_commit() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let (worker, recorder) = observed(&db, jobs![ends, writes]).await;
    let [well, badly, at_once, later] = ["well", "badly", "at once", "later"].map(|how| ends(how.to_owned()));

    let well = well.tenant("acme").enqueue(&db).await.unwrap();
    let told = recorder.ended(well.id(), &[("started", 1), ("completed", 1)], RunState::Completed).await;
    let AttemptEvent { job, version, tenant, worker_id, worker: name, .. } = &told.attempt;
    assert_eq!((job.as_str(), *version, tenant.as_str()), ("ends", 1, "acme"));
    assert_eq!((*worker_id, &**name), (worker.id(), "observed"));

    let writes = writes().enqueue(&db).await.unwrap();
    recorder.ended(writes.id(), &[("started", 1), ("completed", 1)], RunState::Completed).await;

    let badly = badly.enqueue(&db).await.unwrap();
    let events = [("started", 1), ("retried", 1), ("started", 2), ("failed", 2)];
    let told = recorder.ended(badly.id(), &events, RunState::Failed).await;
    assert_eq!(told.failure.as_deref(), Some("no carrier"));

    let at_once = at_once.enqueue(&db).await.unwrap();
    let told = recorder.ended(at_once.id(), &[("started", 1), ("failed", 1)], RunState::Failed).await;
    assert_eq!(told.failure.as_deref(), Some("no such order"));

    let later = later.enqueue(&db).await.unwrap();
    let told = recorder.ended(later.id(), &[("started", 1), ("retried", 1)], RunState::Queued).await;
    assert_eq!((told.failure.as_deref(), told.delay), (Some("not yet"), Some(HOUR)));
    worker.stop().await;
    let told = recorder.told.lock().unwrap().len();
    assert_eq!(told, 2 + 2 + 4 + 2 + 2, "nothing is told twice");
}

#[job]
async fn hangs() -> Result<()> {
    std::future::pending().await
}

#[job]
async fn begins_anew(#[inject] context: &Context) -> Result<()> {
    context.continue_later(HOUR).await
}

#[workflow]
async fn listens(wf: &Wf) -> Result<u64> {
    Ok(wf.signal("go").await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn observer_receives_cancelled_paused_continued_suspended_and_released_attempts() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let recorder = Recorder::new(&db);
    let app = app(&db, jobs![hangs, begins_anew, listens]).drain(Duration::from_millis(1));
    let worker = app.observe(recorder.clone()).start().await.unwrap();

    let cancelled = hangs().enqueue(&db).await.unwrap();
    recorder.until(cancelled.id(), &[("started", 1)]).await;
    cancelled.cancel("not wanted").await.unwrap();
    recorder.ended(cancelled.id(), &[("started", 1), ("cancelled", 1)], RunState::Cancelled).await;

    let held = hangs().enqueue(&db).await.unwrap();
    recorder.until(held.id(), &[("started", 1)]).await;
    held.pause("the disk is full").await.unwrap();
    recorder.ended(held.id(), &[("started", 1), ("paused", 1)], RunState::Paused).await;
    held.resume().await.unwrap();
    recorder.until(held.id(), &[("started", 1), ("paused", 1), ("started", 1)]).await;

    let anew = begins_anew().enqueue(&db).await.unwrap();
    let told = recorder.ended(anew.id(), &[("started", 1), ("continued", 1)], RunState::Queued).await;
    assert_eq!(told.delay, Some(HOUR));

    let listens = listens().enqueue(&db).await.unwrap();
    let waits = [("started", 1), ("waiting", 1), ("started", 1), ("completed", 1)];
    recorder.ended(listens.id(), &waits[..2], RunState::Waiting).await;
    listens.signal("go", &7).await.unwrap();
    recorder.ended(listens.id(), &waits, RunState::Completed).await;

    worker.stop().await;
    let events = [("started", 1), ("paused", 1), ("started", 1), ("released", 1)];
    recorder.ended(held.id(), &events, RunState::Queued).await;
}

#[job]
async fn charges() -> Result<u64> {
    Ok(7)
}

#[job]
async fn refunds(cents: u64) -> Result<()> {
    drop(cents.to_string());
    Ok(())
}

#[workflow]
async fn buys(wf: &Wf, waits: bool) -> Result<()> {
    let saga = wf.saga();
    saga.run(charges(), |cents| refunds(*cents)).await?;
    if waits {
        wf.sleep(HOUR).await?;
    }
    Err(Error::terminal("out of stock"))
}

static IS_CHANGED: AtomicBool = AtomicBool::new(false);

#[workflow]
async fn changes(wf: &Wf) -> Result<u64> {
    let name = if IS_CHANGED.load(Ordering::SeqCst) { "after" } else { "before" };
    wf.step(name, || async { Ok::<_, Error>(()) }).await?;
    Ok(wf.signal("go").await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn observer_receives_compensating_and_blocked_events() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let (worker, recorder) = observed(&db, jobs![buys, charges, refunds, changes, ends]).await;
    let fails = buys(false).enqueue(&db).await.unwrap();
    let events: Vec<_> = eventually(async || recorder.of(fails.id()), |told| told.len() == 3).await;
    let words: Vec<_> = events.iter().map(|told| told.event).collect();
    assert_eq!(words, ["started", "compensating", "failed"]);
    assert_ne!(events[1].state, RunState::Completed);
    assert_eq!((events[2].state, events[2].failure.as_deref()), (RunState::Failed, Some("out of stock")));

    let cancelled = buys(true).enqueue(&db).await.unwrap();
    recorder.until(cancelled.id(), &[("started", 1), ("waiting", 1)]).await;
    cancelled.cancel("not wanted").await.unwrap();
    let events = eventually(async || recorder.of(cancelled.id()), |told| told.len() == 3).await;
    assert_eq!((events[2].event, events[2].state), ("cancelled", RunState::Cancelled));

    let blocked = changes().enqueue(&db).await.unwrap();
    recorder.until(blocked.id(), &[("started", 1), ("waiting", 1)]).await;
    IS_CHANGED.store(true, Ordering::SeqCst);
    blocked.signal("go", &7).await.unwrap();
    let events = [("started", 1), ("waiting", 1), ("started", 1), ("blocked", 1)];
    let told = recorder.ended(blocked.id(), &events, RunState::Blocked).await;
    assert!(told.failure.unwrap().contains("before"));

    let mut graph = Graph::new("one");
    graph.node("only", ends("well".to_owned()));
    let graph = graph.enqueue(&db).await.unwrap();
    until(&db, graph.id(), |info| info.state == RunState::Completed).await;
    let told = eventually(async || recorder.of(graph.id()), |told| told.len() == 2).await;
    assert!(told.iter().all(|told| told.attempt.job.starts_with("runledger.")), "{told:?}");
    worker.stop().await;
}

static TAKEN: Semaphore = Semaphore::const_new(0);

#[job]
async fn is_taken_away() -> Result<()> {
    TAKEN.acquire().await?.forget();
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_attempt_is_reported_superseded_and_current_one_completed() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let (worker, recorder) = observed(&db, jobs![is_taken_away]).await;
    let run = is_taken_away().enqueue(&db).await.unwrap();
    recorder.until(run.id(), &[("started", 1)]).await;
    assert!(take_away(&db, run.id()).await);
    // The worker claims the run again either before or after its first attempt ends.
    let n_started = async || recorder.of(run.id()).iter().filter(|told| told.event == "started").count();
    TAKEN.add_permits(2);
    eventually(n_started, |n| *n == 2).await;
    soon(run.result()).await.unwrap();
    let told = eventually(async || recorder.of(run.id()), |told| told.len() == 4).await;
    let words: Vec<_> = told.iter().map(|told| told.event).collect();
    assert_eq!(words, ["started", "lost", "started", "completed"]);
    worker.stop().await;
    assert_eq!(recorder.of(run.id()).len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_of_dead_worker_are_reported_superseded() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let (worker, recorder) = observed(&db, jobs![hangs]).await;
    let run = hangs().enqueue(&db).await.unwrap();
    recorder.until(run.id(), &[("started", 1)]).await;
    let before = worker.id();
    let bury = "update runledger.worker set state = 'dead', died_at = clock_timestamp(), died_why = 'a test'";
    execute(&db, bury).await;
    let told =
        eventually(async || recorder.of(run.id()), |told| told.iter().any(|told| told.event == "lost")).await;
    assert_eq!(told.iter().find(|told| told.event == "lost").unwrap().attempt.worker_id, before);
    eventually(async || worker.id(), |id| *id != before).await;
    let n_started = async || recorder.of(run.id()).iter().filter(|told| told.event == "started").count();
    eventually(n_started, |n| *n == 2).await;
    run.cancel("not wanted").await.unwrap();
    worker.stop().await;
}

/// Arms a fault for the write that ends its own attempt.
#[job(max_attempts = 1)]
async fn loses_its_acknowledgement(
    statement: String,
    ends_well: bool,
    #[inject] proxy: &Arc<Proxy>,
) -> Result<()> {
    proxy.arm(&statement, Fault::LoseReply);
    if ends_well { Ok(()) } else { Err("no carrier".into()) }
}

#[job]
async fn loses_its_commit(#[inject] proxy: &Arc<Proxy>, #[inject] tx: &mut Tx) -> Result<()> {
    sqlx::query("select 1").execute(&mut **tx).await?;
    proxy.arm("COMMIT", Fault::LoseReply);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn attempt_with_unacknowledged_commit_is_reported_with_committed_outcome() {
    let Fixture { db, database } = Fixture::new().await;
    let (proxy, recorder) = (Arc::new(Proxy::start(database.url()).await.unwrap()), Recorder::new(&db));
    let through = Db::connect(proxy.url()).await.unwrap();
    let app = app(&through, jobs![loses_its_acknowledgement, loses_its_commit]).provide(Arc::clone(&proxy));
    let worker = app.observe(recorder.clone()).start().await.unwrap();

    let plain = loses_its_acknowledgement("-- settle_completed".to_owned(), true).enqueue(&db).await.unwrap();
    recorder.ended(plain.id(), &[("started", 1), ("completed", 1)], RunState::Completed).await;
    let fails = loses_its_acknowledgement("-- settle:".to_owned(), false).enqueue(&db).await.unwrap();
    recorder.ended(fails.id(), &[("started", 1), ("failed", 1)], RunState::Failed).await;
    let transactional = loses_its_commit().enqueue(&db).await.unwrap();
    recorder.ended(transactional.id(), &[("started", 1), ("completed", 1)], RunState::Completed).await;
    assert_eq!(proxy.n_faults(), 3);
    worker.stop().await;
}

/// Counts events, and panics at each.
#[derive(Clone, Default)]
struct Panics(Arc<AtomicU64>);

impl Observer for Panics {
    fn started(&self, attempt: &AttemptEvent) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("at the start of {}", attempt.run_id);
    }

    fn completed(&self, attempt: &AttemptEvent) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("at the end of {}", attempt.run_id);
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        if Arc::strong_count(&self.0) > 1 && !std::thread::panicking() {
            panic!("at its own end");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn panicking_observer_affects_no_others_and_still_receives_events() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let (counter, recorder) = (Arc::new(AtomicU64::new(0)), Recorder::new(&db));
    let app = app(&db, jobs![ends]).observe(Panics(Arc::clone(&counter))).observe(recorder.clone());
    let worker = app.start().await.unwrap();
    for _ in 0..4 {
        let run = ends("well".to_owned()).enqueue(&db).await.unwrap();
        recorder.ended(run.id(), &[("started", 1), ("completed", 1)], RunState::Completed).await;
    }
    worker.stop().await;
    assert_eq!(counter.load(Ordering::SeqCst), 8);
}

/// Blocks an observer until the gate is opened.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn pass(&self) {
        let is_open = self.is_open.lock().unwrap();
        drop(self.opened.wait_while(is_open, |is_open| !*is_open).unwrap());
    }

    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

/// Blocks its thread at the gate, and counts events.
#[derive(Clone, Default)]
struct Slow {
    gate: Arc<Gate>,
    n_told: Arc<AtomicU64>,
    n_missed: Arc<AtomicU64>,
}

impl Observer for Slow {
    fn started(&self, _attempt: &AttemptEvent) {
        self.gate.pass();
        self.n_told.fetch_add(1, Ordering::SeqCst);
    }

    fn completed(&self, _attempt: &AttemptEvent) {
        self.gate.pass();
        self.n_told.fetch_add(1, Ordering::SeqCst);
    }

    fn dropped(&self, n_events: u64) {
        self.n_missed.fetch_add(n_events, Ordering::SeqCst);
    }
}

impl Slow {
    fn counts(&self) -> (u64, u64) {
        (self.n_told.load(Ordering::SeqCst), self.n_missed.load(Ordering::SeqCst))
    }
}

/// The maximum number of events that wait for an observer.
const DEPTH: u64 = 4096;

async fn complete(db: &Db, n_runs: u64) {
    enqueue_all((0..n_runs).map(|_| ends("well".to_owned())), db).await.unwrap();
    let completed = "select count(*) from runledger.outcome where state = 'completed'";
    eventually(async || scalar::<i64>(db, completed).await, |n| n.unsigned_abs() == n_runs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_observer_delays_no_run_and_learns_dropped_event_count() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let slow = Slow::default();
    let worker = app(&db, jobs![ends]).observe(slow.clone()).start().await.unwrap();
    // The last runs may end while the observer is already running again.
    let n_runs = DEPTH / 2 + 1_000;
    complete(&db, n_runs).await;
    assert_eq!(slow.counts(), (0, 0));
    slow.gate.open();
    let (n_told, n_missed) =
        eventually(async || slow.counts(), |(told, missed)| told + missed == 2 * n_runs).await;
    assert!(n_told >= DEPTH && n_missed > 0, "{n_told} told, {n_missed} missed");
    worker.stop().await;
    assert_eq!(slow.counts(), (n_told, n_missed));
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_waits_for_pending_observer_events() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let slow = Slow::default();
    let worker = app(&db, jobs![ends]).observe(slow.clone()).start().await.unwrap();
    complete(&db, 10).await;
    let stopping = tokio::spawn(worker.stop());
    let gone = "select count(*) from runledger.worker where state <> 'dead'";
    eventually(async || scalar::<i64>(&db, gone).await, |n| *n == 0).await;
    assert!(!stopping.is_finished());
    slow.gate.open();
    soon(stopping).await.unwrap();
    assert_eq!(slow.counts(), (20, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_observer_does_not_prevent_worker_stop() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let slow = Slow::default();
    let worker = app(&db, jobs![ends]).drain(Duration::ZERO).observe(slow.clone()).start().await.unwrap();
    complete(&db, 10).await;
    soon(worker.stop()).await;
    assert_eq!(slow.counts(), (0, 0), "it was not waited for");
    slow.gate.open();
}
