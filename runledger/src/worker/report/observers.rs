//! Delivers events of attempts to observers.
//!
//! Each observer has a bounded channel and a thread, so it delays no run, no runtime thread and no
//! other observer.
//!
//! ```text
//! executor ── Watch (per attempt) ──> Line (try_send or count as missed) ──> thread ──> Observer
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::{TryRecvError, TrySendError};
use tokio::time::{Instant, timeout_at};

use crate::connection::panic::contained;
use crate::model::run::failure::Failure;
use crate::model::run::settle::{Cause, Due, Verdict};
use crate::model::run::version::parts;
use crate::store::worker::claim::Claimed;
use crate::worker::observer::{AttemptEvent, Observer};

/// Events that may wait for one observer: 100 ms of the fastest worker. Also the bound on memory.
const DEPTH: usize = 4096;

/// The observers of an app before the worker starts.
#[derive(Default)]
pub(crate) struct Given(Vec<Box<dyn Observer>>);

impl Given {
    pub(crate) fn add(&mut self, observer: impl Observer) {
        self.0.push(Box::new(observer));
    }
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} observers", self.0.len())
    }
}

/// The channels to the observers of a worker. Cloning is cheap.
#[derive(Clone, Debug)]
pub(crate) struct Observers(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    worker: Arc<str>,
    lines: Vec<Line>,
}

/// The channel to one observer.
#[derive(Debug)]
struct Line {
    sender: mpsc::Sender<Message>,
    /// Dropped events that were not reported to the observer yet.
    n_missed: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Message {
    /// An event, and how many events were dropped before it.
    Event(u64, Arc<Event>),
    /// No event follows.
    End,
}

#[derive(Debug)]
struct Event {
    attempt: AttemptEvent,
    what: What,
}

/// An event in the life of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum What {
    Started,
    Completed,
    Retried(Failure, Duration),
    Failed(Failure),
    Cancelled,
    Compensating,
    Waiting,
    Continued(Duration),
    Paused,
    Released,
    Blocked(Failure),
    Lost,
}

impl What {
    /// The event for a committed verdict.
    pub(crate) fn of(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Complete(_) => Self::Completed,
            Verdict::Fail(failure) => Self::Failed(failure.clone()),
            Verdict::Cancel(_) => Self::Cancelled,
            Verdict::Block(failure) => Self::Blocked(failure.clone()),
            Verdict::Pause => Self::Paused,
            Verdict::Requeue { due, cause, failure } => match (cause, due, failure) {
                (Cause::Retried, Due::In(delay), Some(failure)) => Self::Retried(failure.clone(), *delay),
                (Cause::Continued, Due::In(delay), _) => Self::Continued(*delay),
                (Cause::Slept, _, _) => Self::Waiting,
                _ => Self::Released,
            },
        }
    }
}

impl Observers {
    /// Starts one thread per observer. A thread ends on `Message::End`, or when all senders are
    /// dropped.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(crate) fn start(given: Given, worker: &str) -> Result<Self, std::io::Error> {
        if given.0.is_empty() {
            return Ok(Self(None));
        }
        let lines = given.0.into_iter().map(Line::start).collect::<Result<_, _>>()?;
        Ok(Self(Some(Arc::new(Inner { worker: worker.into(), lines }))))
    }

    /// Starts watching an attempt. `None` without observers.
    pub(crate) fn watch(&self, claimed: &Claimed, worker_id: i64) -> Option<Box<Watch>> {
        let inner = self.0.as_ref()?;
        let (job, version) = parts(&claimed.lane.job);
        let attempt = AttemptEvent {
            run_id: claimed.run_id,
            job: job.to_owned(),
            version,
            tenant: claimed.tenant.clone(),
            attempt: claimed.counters.attempt.unsigned_abs(),
            started_at: claimed.claimed_at.into(),
            worker_id,
            worker: Arc::clone(&inner.worker),
            took: Duration::ZERO,
        };
        let watch = Watch {
            observers: Arc::clone(inner),
            attempt,
            began: Instant::now(),
            has_ended: AtomicBool::new(false),
        };
        Some(Box::new(watch))
    }

    /// Waits until the observers have received all events, up to the deadline.
    pub(crate) async fn end(&self, deadline: Instant) {
        for line in self.0.iter().flat_map(|inner| &inner.lines) {
            if timeout_at(deadline, line.end()).await.is_err() {
                tracing::warn!(
                    n_events = DEPTH - line.sender.capacity(),
                    "an observer has not taken what it was to be told before the deadline of the shutdown; the worker ends without it"
                );
            }
        }
    }
}

impl Line {
    fn start(observer: Box<dyn Observer>) -> Result<Self, std::io::Error> {
        let (sender, told) = mpsc::channel(DEPTH);
        let n_missed = Arc::new(AtomicU64::new(0));
        let line = Self { sender, n_missed: Arc::clone(&n_missed) };
        std::thread::Builder::new()
            .name("runledger-observer".to_owned())
            .spawn(move || deliver(observer, told, &n_missed))?;
        Ok(line)
    }

    /// Never waits.
    fn tell(&self, event: &Arc<Event>) {
        let n_missed = self.n_missed.swap(0, Ordering::Relaxed);
        match self.sender.try_send(Message::Event(n_missed, Arc::clone(event))) {
            Err(TrySendError::Full(_)) => {
                self.n_missed.fetch_add(n_missed + 1, Ordering::Relaxed);
            }
            // A closed channel means that the worker ended without this observer.
            Ok(()) | Err(TrySendError::Closed(_)) => {}
        }
    }

    async fn end(&self) {
        // The send fails if the observer has already ended.
        let _ = self.sender.send(Message::End).await;
        self.sender.closed().await;
    }
}

/// The body of an observer's thread.
fn deliver(observer: Box<dyn Observer>, mut told: mpsc::Receiver<Message>, n_missed: &AtomicU64) {
    loop {
        let message = match told.try_recv() {
            Err(TryRecvError::Empty) => {
                // Report the dropped events now: there may be no further event that carries their
                // number.
                miss(&*observer, n_missed.swap(0, Ordering::Relaxed));
                told.blocking_recv()
            }
            message => message.ok(),
        };
        let Some(Message::Event(n_missed, event)) = message else { break };
        miss(&*observer, n_missed);
        call(|| event.tell(&*observer));
    }
    miss(&*observer, n_missed.swap(0, Ordering::Relaxed));
    call(|| drop(observer));
    drop(told);
}

fn miss(observer: &dyn Observer, n_events: u64) {
    if n_events > 0 {
        tracing::warn!(n_events, "an observer is too slow, and was not told of as many events");
        call(|| observer.dropped(n_events));
    }
}

/// Calls an observer and contains its panics.
fn call(code: impl FnOnce()) {
    if let Err(failure) = contained(code) {
        // Do not log the panic message: it may contain the run's failure, which may be encrypted.
        // The program's own panic hook has already received it.
        let location = failure.location.as_deref().unwrap_or_default();
        tracing::error!(location, "an observer panicked");
    }
}

impl Event {
    fn tell(&self, observer: &dyn Observer) {
        let attempt = &self.attempt;
        match &self.what {
            What::Started => observer.started(attempt),
            What::Completed => observer.completed(attempt),
            What::Retried(failure, delay) => observer.retried(attempt, failure, *delay),
            What::Failed(failure) => observer.failed(attempt, failure),
            What::Cancelled => observer.cancelled(attempt),
            What::Compensating => observer.compensating(attempt),
            What::Waiting => observer.waiting(attempt),
            What::Continued(delay) => observer.continued(attempt, *delay),
            What::Paused => observer.paused(attempt),
            What::Released => observer.released(attempt),
            What::Blocked(failure) => observer.blocked(attempt, failure),
            What::Lost => observer.superseded(attempt),
        }
    }
}

/// Reports one attempt to the observers: its start, and its end once. If the watch is dropped
/// before the end, because its task was dropped or the engine panicked, it reports the attempt as
/// lost.
#[derive(Debug)]
pub(crate) struct Watch {
    observers: Arc<Inner>,
    attempt: AttemptEvent,
    began: Instant,
    has_ended: AtomicBool,
}

impl Watch {
    pub(crate) fn started(&self) {
        self.tell(What::Started);
    }

    pub(crate) fn ended(&self, what: What) {
        if !self.has_ended.swap(true, Ordering::Relaxed) {
            self.tell(what);
        }
    }

    fn tell(&self, what: What) {
        let attempt = AttemptEvent { took: self.began.elapsed(), ..self.attempt.clone() };
        let event = Arc::new(Event { attempt, what });
        for line in &self.observers.lines {
            line.tell(&event);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ended(What::Lost);
    }
}
