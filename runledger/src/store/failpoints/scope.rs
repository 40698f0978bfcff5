//! Faults of one worker, independent of other workers in the process. The worker has its own
//! thread, which executes all its writes.
//!
//! A write is identified by its failpoint, the step that it records (if any), and how many such
//! writes came before it. A write for several steps has one name per step, and a statement that
//! finds nothing has none. So the names are the same in every run of a test.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sqlx::postgres::PgRow;
use tokio::sync::watch;
use uuid::Uuid;

use super::{Moment, lost};

thread_local! {
    static SCOPE: RefCell<Option<Arc<Scope>>> = const { RefCell::new(None) };
    /// The steps of the write that is about to begin.
    static STEPS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Writes of a worker for itself and for other workers. They advance no run.
const OF_THE_FLEET: [&str; 12] = [
    "burial_by_lock",
    "burial_by_silence",
    "cancel_forget",
    "end_sessions",
    "heartbeat",
    "predecessors",
    "settle_orphans",
    "suspect",
    "wake_due",
    "watch",
    "worker_bury",
    "worker_pull_back",
];

/// A write of a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Written {
    point: String,
    step: Option<String>,
    /// From 1.
    n: usize,
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.step, self.point.as_str()) {
            (Some(step), "checkpoint") => write!(f, "step `{step}`")?,
            (Some(step), "body") => write!(f, "the transaction of `{step}`")?,
            (Some(step), point) => write!(f, "`{point}` of step `{step}`")?,
            (None, "claim") => write!(f, "the claim")?,
            (None, "settle_completed") => write!(f, "the outcome")?,
            (None, point) => write!(f, "`{point}`")?,
        }
        if self.n > 1 { write!(f, " (number {})", self.n) } else { Ok(()) }
    }
}

/// A worker that keeps a list of its writes, and dies at a given write.
#[derive(Debug)]
pub(crate) struct Scope {
    dies_at: Option<(Written, Moment)>,
    state: Mutex<State>,
    dead: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    written: Vec<Written>,
    /// The fault has happened.
    was_met: bool,
    /// The fault has happened, and the worker dies at its next write.
    dies_next: bool,
}

impl Scope {
    /// Creates the scope of a worker that dies at this moment of this write, if one is given.
    pub(crate) fn new(dies_at: Option<(Written, Moment)>) -> Arc<Self> {
        Arc::new(Self { dies_at, state: Mutex::default(), dead: watch::Sender::new(false) })
    }

    /// Assigns this thread to the worker, until the thread ends.
    pub(crate) fn enter(self: &Arc<Self>) {
        SCOPE.set(Some(Arc::clone(self)));
    }

    /// Whether its fault has happened.
    pub(crate) fn was_met(&self) -> bool {
        self.state().was_met
    }

    /// The writes so far, in order.
    pub(crate) fn written(&self) -> Vec<Written> {
        self.state().written.clone()
    }

    pub(crate) fn is_dead(&self) -> bool {
        *self.dead.borrow()
    }

    /// Returns when the worker dies.
    pub(crate) async fn death(&self) {
        // The sender lives as long as this value.
        let _ = self.dead.subscribe().wait_for(|dead| *dead).await.is_ok();
    }

    /// Executes a write of this worker.
    pub(super) async fn pass<T: 'static>(
        &self,
        point: &str,
        write: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, sqlx::Error> {
        let steps = STEPS.take();
        if self.is_dead() || std::mem::take(&mut self.state().dies_next) {
            return self.die().await;
        }
        if point.starts_with("worker_") || OF_THE_FLEET.contains(&point) {
            return write.await;
        }
        if self.meets(&self.names(point, &steps), Moment::Before) {
            return self.die().await;
        }
        let done = write.await?;
        if self.is_dead() {
            return std::future::pending().await;
        }
        if has_found_nothing(&done) {
            return Ok(done);
        }
        let names = self.names(point, &steps);
        self.state().written.extend(names.iter().cloned());
        if self.meets(&names, Moment::After) {
            return self.die().await;
        }
        if self.meets(&names, Moment::Lost) {
            self.state().dies_next = true;
            return Err(lost());
        }
        Ok(done)
    }

    /// The names of the next write: several if it records several steps.
    fn names(&self, point: &str, steps: &[String]) -> Vec<Written> {
        // Both statements record steps. `checkpoint_fresh` is the first try.
        let point = if point == "checkpoint_fresh" { "checkpoint" } else { point };
        let steps = match steps {
            [] => vec![None],
            steps => steps.iter().cloned().map(Some).collect(),
        };
        let state = self.state();
        let name = |step| {
            let before = state.written.iter().filter(|it| it.point == point && it.step == step).count();
            Written { point: point.to_owned(), step, n: before + 1 }
        };
        steps.into_iter().map(name).collect()
    }

    fn meets(&self, names: &[Written], moment: Moment) -> bool {
        let is_met = self.dies_at.as_ref().is_some_and(|(name, at)| *at == moment && names.contains(name));
        self.state().was_met |= is_met;
        is_met
    }

    /// Stops this worker: its thread ends, and drops everything that waits here.
    async fn die<T>(&self) -> T {
        self.dead.send_replace(true);
        std::future::pending().await
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The scope of this thread.
pub(super) fn current() -> Option<Arc<Scope>> {
    SCOPE.with_borrow(Clone::clone)
}

/// Sets the steps that the next write records.
pub(crate) fn steps<'a>(keys: impl Iterator<Item = &'a str>) {
    STEPS.with_borrow_mut(|steps| {
        steps.clear();
        if SCOPE.with_borrow(Option::is_some) {
            steps.extend(keys.map(without_ids));
        }
    });
}

/// Returns a step's key with `*` for each UUID. Another run has other UUIDs, and must find the same
/// names of faults.
pub(crate) fn without_ids(key: &str) -> String {
    const LENGTH: usize = 36;
    let mut rest = key;
    let mut name = String::with_capacity(key.len());
    while let Some(first) = rest.chars().next() {
        let is_id = rest.get(..LENGTH).is_some_and(|text| Uuid::try_parse(text).is_ok());
        let (said, taken) = if is_id { ('*', LENGTH) } else { (first, first.len_utf8()) };
        name.push(said);
        rest = &rest[taken..];
    }
    name
}

/// Whether a statement returned nothing. An idle worker polls any number of times, so such a
/// statement does not count as a write.
fn has_found_nothing(done: &dyn Any) -> bool {
    done.downcast_ref::<Vec<PgRow>>().is_some_and(Vec::is_empty)
        || done.downcast_ref::<Option<PgRow>>().is_some_and(Option::is_none)
}

#[test]
fn uuids_in_key_are_masked_and_other_digits_kept() {
    let id = Uuid::now_v7();
    assert_eq!(without_ids(&format!("book[{id}-é-{id}]")), "book[*-é-*]");
    assert_eq!(without_ids("book[12345678]"), "book[12345678]");
}
