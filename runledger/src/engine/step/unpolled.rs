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

use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Wake, Waker};
#[cfg(feature = "worker")]
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::time::Instant;

use crate::engine::attempt::Attempt;
#[cfg(feature = "worker")]
use crate::engine::attempt::stop::StopReason;
use crate::model::replay::Claim;
#[cfg(feature = "worker")]
use crate::model::run::failure::{Failure, FailureKind};

/// How long a ready step may be unpolled before it counts as such. Combinators of many futures poll
/// some of them later.
#[cfg(feature = "worker")]
pub(crate) const UNPOLLED_AFTER: Duration = Duration::from_secs(1);

/// How long a ready step with a transaction may be unpolled. Longer than a machine is busy, but
/// short for other sessions that wait for its locks.
#[cfg(feature = "worker")]
pub(crate) const UNPOLLED_TRANSACTION_LIMIT: Duration = Duration::from_secs(10);

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

/// The steps that the code does not poll.
#[cfg(feature = "worker")]
#[derive(Clone, Debug, Default)]
pub(crate) struct UnpolledSteps {
    /// How many steps there are, if every working step is unpolled for [`UNPOLLED_AFTER`].
    pub(crate) count: Option<usize>,
    /// If all working steps are unpolled: when the last of them became so.
    pub(crate) last: Option<Instant>,
    /// The first unpolled step with a transaction: since when, and its key.
    pub(crate) transaction: Option<(Instant, String)>,
}

#[cfg(feature = "worker")]
impl AtWork {
    /// The unpolled steps after a poll of the code that began at this instant.
    pub(crate) fn unpolled(&self, polled_from: Instant) -> UnpolledSteps {
        let woken = std::mem::take(&mut locked(&self.passes).woken);
        let mut later = Vec::new();
        for ordinal in woken {
            if self.steps.get(&ordinal).is_some_and(|step| step.look(polled_from) == Look::Again) {
                later.push(ordinal);
            }
        }
        let mut passes = locked(&self.passes);
        passes.woken.append(&mut later);
        let are_all = !self.steps.is_empty() && passes.n_passed == self.steps.len();
        let transactions: Vec<u64> = passes.transactions.iter().copied().collect();
        drop(passes);
        let transactions = transactions.iter().filter_map(|ordinal| self.steps.get(ordinal));
        let transaction = transactions
            .filter_map(|step| Some((step.passed_at()?, step)))
            .min_by_key(|(since, _)| *since)
            .map(|(since, step)| (since, step.key.clone()));
        let last = if are_all { self.steps.values().filter_map(|step| step.passed_at()).max() } else { None };
        let count = last.filter(|last| last.elapsed() >= UNPOLLED_AFTER).map(|_| self.steps.len());
        UnpolledSteps { count, last, transaction }
    }
}

/// The result of checking a woken step.
#[cfg(feature = "worker")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// The code has polled it, or it is unpolled.
    Done,
    /// It was woken during the poll. The next check decides.
    Again,
}

#[cfg(feature = "worker")]
impl AtWorkStep {
    /// Checks whether a poll of the code that began at this instant skipped the step.
    fn look(&self, polled_from: Instant) -> Look {
        #[cfg(test)]
        tests::N_LOOKS.set(tests::N_LOOKS.get() + 1);
        let mut look = Look::Done;
        self.change(|pass| match pass.ready_since {
            Some(since) if since < polled_from => {
                pass.passed_at.get_or_insert_with(Instant::now);
            }
            Some(_) => look = Look::Again,
            None => {}
        });
        look
    }

    /// When a poll of the code first skipped the step. `None` if it is not unpolled.
    fn passed_at(&self) -> Option<Instant> {
        #[cfg(test)]
        tests::N_LOOKS.set(tests::N_LOOKS.get() + 1);
        locked(&self.pass).passed_at
    }
}

/// The reason to stop an attempt whose code does not poll a step with a transaction for too long.
#[cfg(feature = "worker")]
pub(crate) fn unpolled_for_too_long(key: &str) -> StopReason {
    let message = format!(
        "step `{key}` holds a transaction that could go on, and the workflow's code has not polled it for {UNPOLLED_TRANSACTION_LIMIT:?}: it awaits something else, as \
         a loop over a stream does that awaits steps for an item; it was rolled back. Await the step before or together with what comes next (`join!`), drop it, or \
         make a transactional `#[job]` of its body and run that with `wf.run`, which goes on by itself"
    );
    StopReason::Unpolled(Failure::new(FailureKind::Setup, message))
}

#[cfg(all(test, feature = "worker"))]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// How many steps were checked in this thread.
        pub(super) static N_LOOKS: Cell<usize> = const { Cell::new(0) };
    }

    const MANY: u64 = 10_000;

    fn begin(at_work: &mut AtWork, ordinal: u64) -> Arc<AtWorkStep> {
        at_work.begin(Weak::new(), ordinal, &format!("step[{ordinal}]"))
    }

    /// Polls the code. Advances the clock first, so that steps woken earlier count as woken before
    /// it.
    async fn a_poll(at_work: &AtWork, polled: &[&Arc<AtWorkStep>]) -> UnpolledSteps {
        tokio::time::advance(Duration::from_millis(1)).await;
        let polled_from = Instant::now();
        for step in polled {
            step.polled_by(Waker::noop());
        }
        at_work.unpolled(polled_from)
    }

    #[tokio::test(start_paused = true)]
    async fn steps_of_a_fan_out_are_looked_at_when_they_are_woken_and_no_more() {
        let mut at_work = AtWork::default();
        let steps: Vec<_> = (0..MANY).map(|ordinal| begin(&mut at_work, ordinal)).collect();
        for step in &steps {
            Arc::clone(step).wake();
            assert_eq!(a_poll(&at_work, &[step]).await.last, None);
            at_work.end(step.ordinal);
        }
        assert!(N_LOOKS.get() <= steps.len(), "{} looks", N_LOOKS.get());
    }

    #[tokio::test(start_paused = true)]
    async fn steps_that_are_kept_while_others_come_and_go_are_looked_at_once() {
        let mut at_work = AtWork::default();
        let beside = begin(&mut at_work, MANY);
        for ordinal in 0..MANY {
            begin(&mut at_work, ordinal).wake();
        }
        for _ in 0..MANY {
            Arc::clone(&beside).wake();
            assert_eq!(a_poll(&at_work, &[&beside]).await.last, None);
        }
        let n_wakes = usize::try_from(2 * MANY).unwrap();
        assert!(N_LOOKS.get() <= n_wakes, "{} looks", N_LOOKS.get());
    }

    #[tokio::test(start_paused = true)]
    async fn what_counts_as_kept_was_ready_before_a_poll_that_passed_it_by_a_second_ago() {
        let mut at_work = AtWork::default();
        let [one, two] = [0, 1].map(|ordinal| begin(&mut at_work, ordinal));
        Arc::clone(&one).wake();
        assert_eq!(a_poll(&at_work, &[]).await.last, None, "the other waits for something");
        tokio::time::advance(UNPOLLED_AFTER).await;
        let polled_from = Instant::now();
        Arc::clone(&two).wake();
        assert_eq!(at_work.unpolled(polled_from).last, None, "it was woken during the poll");
        let kept = a_poll(&at_work, &[]).await;
        assert_eq!((kept.count, kept.last), (None, Some(Instant::now())), "both are, one not for long");
        tokio::time::advance(UNPOLLED_AFTER).await;
        assert_eq!(a_poll(&at_work, &[]).await.count, Some(2));
        assert_eq!(a_poll(&at_work, &[&one]).await.count, None, "it was polled");
        at_work.end(0);
        let kept = a_poll(&at_work, &[]).await;
        assert_eq!(kept.count, Some(1), "the other has been passed by all the while");
        at_work.end(1);
        assert_eq!(a_poll(&at_work, &[]).await.last, None);
    }

    #[tokio::test(start_paused = true)]
    async fn of_those_that_hold_a_transaction_the_one_that_was_passed_by_first_counts() {
        let mut at_work = AtWork::default();
        let [one, two, three] = [0, 1, 2].map(|ordinal| begin(&mut at_work, ordinal));
        for step in [&one, &two] {
            step.change(|pass| pass.holds_transaction = true);
        }
        for step in [&three, &two] {
            Arc::clone(step).wake();
        }
        let since = a_poll(&at_work, &[]).await.transaction.unwrap();
        assert_eq!(since, (Instant::now(), "step[1]".to_owned()));
        Arc::clone(&one).wake();
        assert_eq!(a_poll(&at_work, &[]).await.transaction, Some(since));
        assert_eq!(a_poll(&at_work, &[&two]).await.transaction.unwrap().1, "step[0]");
        at_work.end(0);
        assert_eq!(a_poll(&at_work, &[]).await.transaction, None);
    }
}
