//! Unpolled steps: steps that the code has started and does not poll, such as the other items of a
//! stream while the code handles one of them.
//!
//! A future makes no progress unless it is polled, so an unpolled step does not count as working.
//! If all other steps wait, the run is suspended, and an unfinished body starts again later, as
//! after any interruption.
//!
//! An unpolled step may hold a connection of the pool and locks in the database. Therefore a step
//! that owns all its data runs in its own task
//! ([`spawn_detached`](crate::connection::task::spawn_detached)). A step that borrows from the code
//! cannot. It ends the attempt if it is unpolled for too long.

#[cfg(feature = "worker")]
pub(crate) mod check;

use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Wake, Waker};

use futures_util::task::AtomicWaker;
use tokio::time::Instant;

use crate::engine::attempt::Attempt;
use crate::model::replay::Claim;

/// The work of a step.
pub(crate) type StepWork<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Executes the work of a step, and tracks whether the code polls it. The step counts as working
/// until the work ends ([`Attempt::begin_work`]).
pub(crate) async fn at_work<T>(attempt: &Arc<Attempt>, claim: &Claim, mut work: StepWork<'_, T>) -> T {
    let _working = attempt.begin_work().await;
    let ordinal = claim.ordinal;
    let step = attempt.progress().at_work.begin(Arc::downgrade(attempt), ordinal, claim.key.as_str());
    let _listed = Listed { attempt, ordinal };
    let waker = Waker::from(Arc::clone(&step));
    std::future::poll_fn(|cx| {
        step.polled_by(cx.waker());
        work.as_mut().poll(&mut Context::from_waker(&waker))
    })
    .await
}

/// The working steps of an attempt.
///
/// There may be thousands, and after each poll of the code the executor checks which are unpolled.
/// To avoid visiting all of them, each step registers when it is woken. The check visits only
/// those, and counts the results.
#[derive(Debug, Default)]
pub(crate) struct AtWork {
    /// By the ordinals of their claims.
    steps: HashMap<u64, Arc<AtWorkStep>>,
    passes: Arc<Mutex<PollStates>>,
}

/// The totals over all working steps.
#[derive(Debug, Default)]
struct PollStates {
    /// Ordinals of steps that were woken and not visited since. Some may have ended.
    woken: Vec<u64>,
    /// How many steps are unpolled.
    n_passed: usize,
    /// The unpolled steps that hold a transaction.
    transactions: BTreeSet<u64>,
}

/// The state of one working step.
#[derive(Debug, Default)]
pub(crate) struct AtWorkStep {
    attempt: Weak<Attempt>,
    ordinal: u64,
    key: String,
    /// The waker of the task that polls the step.
    poller: AtomicWaker,
    /// Lock order: before the totals.
    pass: Mutex<PollState>,
    passes: Arc<Mutex<PollStates>>,
}

/// Whether the code polls a step.
#[derive(Clone, Copy, Debug, Default)]
struct PollState {
    /// Since when the step is ready. `None` if it waits for something, or was polled.
    ready_since: Option<Instant>,
    /// When the first poll of the code ended that began after `ready_since` and skipped the step.
    passed_at: Option<Instant>,
    /// Whether the step holds a transaction that only ends if the code polls it.
    holds_transaction: bool,
}

impl PollState {
    fn keeps_transaction(self) -> bool {
        self.holds_transaction && self.passed_at.is_some()
    }
}

impl AtWork {
    fn begin(&mut self, attempt: Weak<Attempt>, ordinal: u64, key: &str) -> Arc<AtWorkStep> {
        let (key, passes) = (key.to_owned(), Arc::clone(&self.passes));
        let step = Arc::new(AtWorkStep { attempt, ordinal, key, passes, ..AtWorkStep::default() });
        self.steps.insert(ordinal, Arc::clone(&step));
        step
    }

    fn end(&mut self, ordinal: u64) {
        if let Some(step) = self.steps.remove(&ordinal) {
            step.change(|pass| *pass = PollState::default());
        }
    }
}

impl AtWorkStep {
    fn polled_by(&self, poller: &Waker) {
        self.poller.register(poller);
        self.change(|pass| {
            *pass = PollState { holds_transaction: pass.holds_transaction, ..PollState::default() }
        });
    }

    /// Changes the state of the step and updates the totals.
    fn change(&self, change: impl FnOnce(&mut PollState)) {
        let mut pass = locked(&self.pass);
        let before = *pass;
        change(&mut pass);
        let is_passed = pass.passed_at.is_some();
        if before.passed_at.is_some() == is_passed && before.keeps_transaction() == pass.keeps_transaction() {
            return;
        }
        let mut passes = locked(&self.passes);
        passes.n_passed -= usize::from(before.passed_at.is_some());
        passes.n_passed += usize::from(is_passed);
        if pass.keeps_transaction() {
            passes.transactions.insert(self.ordinal);
        } else {
            passes.transactions.remove(&self.ordinal);
        }
    }
}

/// Nothing panics while it holds one of these locks.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wake for AtWorkStep {
    fn wake(self: Arc<Self>) {
        let mut pass = locked(&self.pass);
        if pass.ready_since.is_none() {
            pass.ready_since = Some(Instant::now());
            locked(&self.passes).woken.push(self.ordinal);
        }
        drop(pass);
        self.poller.wake();
        // A stream that is not polled any more has already woken its own poller, and does not do so
        // again.
        if let Some(attempt) = self.attempt.upgrade() {
            attempt.driver.wake();
        }
    }
}

/// Keeps a step in the list of working steps while it lives.
struct Listed<'a> {
    attempt: &'a Attempt,
    ordinal: u64,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.attempt.progress().at_work.end(self.ordinal);
    }
}

impl Attempt {
    /// Notes that a working step holds a transaction that only ends if the code polls it.
    pub(crate) fn holds_transaction(&self, ordinal: u64) {
        self.note_transaction(ordinal, true);
    }

    /// Notes that the transaction of a step commits even if the code does not poll the step.
    /// Returns whether the transaction needed polls before.
    pub(crate) fn lets_go_of_transaction(&self, ordinal: u64) -> bool {
        self.note_transaction(ordinal, false)
    }

    fn note_transaction(&self, ordinal: u64, is_held: bool) -> bool {
        let mut was_held = false;
        if let Some(step) = self.progress().at_work.steps.get(&ordinal) {
            step.change(|pass| was_held = std::mem::replace(&mut pass.holds_transaction, is_held));
        }
        was_held
    }
}
