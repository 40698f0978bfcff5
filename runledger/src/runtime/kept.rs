//! Steps that the code has begun and keeps without polling them, as a stream does whose items it works on.
//!
//! A future that nobody polls does not go on. So such a step is not at work, and a run whose other steps wait leaves its worker like any that waits: what is recorded
//! of the step is kept, and a body that is not at its end begins anew, as after any interruption. But what it holds is nobody's meanwhile: a transaction's connection is
//! the pool's, and its locks are the database's. What owns all it needs is carried out apart from the code ([`apart`](super::task::apart)); what borrows from the code
//! cannot be, and ends the attempt where it is kept for too long.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Wake, Waker};
#[cfg(feature = "worker")]
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::time::Instant;

use super::attempt::Attempt;
#[cfg(feature = "worker")]
use super::halt::Halt;
#[cfg(feature = "worker")]
use crate::model::failure::{Failure, FailureKind};
use crate::model::replay::Claim;

/// How long a step that could go on is not polled before it counts as kept: a combinator of many polls some of them later.
#[cfg(feature = "worker")]
pub(crate) const KEPT: Duration = Duration::from_secs(1);

/// How long the code may keep a step that holds a transaction and could go on: longer than a machine is busy, and short for those who wait.
#[cfg(feature = "worker")]
pub(crate) const KEPT_IN_TRANSACTION: Duration = Duration::from_secs(10);

/// The steps of an attempt that are at work, by the ordinals of their claims.
pub(crate) type AtWork = HashMap<u64, Arc<AtWorkStep>>;

/// The work of a step.
pub(crate) type StepWork<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Does the work of a step, which counts as working until then ([`Attempt::begin_work`]), and lets the attempt know whether the code polls it.
pub(crate) async fn at_work<T>(attempt: &Arc<Attempt>, claim: &Claim, mut work: StepWork<'_, T>) -> T {
    let _working = attempt.begin_work().await;
    let (ordinal, key) = (claim.ordinal, claim.key.as_str().to_owned());
    let step = Arc::new(AtWorkStep { attempt: Arc::downgrade(attempt), key, ..AtWorkStep::default() });
    attempt.progress().at_work.insert(ordinal, Arc::clone(&step));
    let _listed = Listed { attempt, ordinal };
    let waker = Waker::from(Arc::clone(&step));
    std::future::poll_fn(|cx| {
        step.polled_by(cx.waker());
        work.as_mut().poll(&mut Context::from_waker(&waker))
    })
    .await
}

/// What is known of a step that is at work.
#[derive(Debug, Default)]
pub(crate) struct AtWorkStep {
    attempt: Weak<Attempt>,
    key: String,
    /// Whoever polls the step.
    poller: AtomicWaker,
    pass: Mutex<Pass>,
    holds_transaction: AtomicBool,
}

/// Whether the code passes a step by.
#[derive(Clone, Copy, Debug, Default)]
struct Pass {
    /// Since when the step could go on; none where it waits for something, or was polled.
    ready_since: Option<Instant>,
    /// When the first poll of the code ended that began later and did not poll the step.
    passed_at: Option<Instant>,
}

impl AtWorkStep {
    fn polled_by(&self, poller: &Waker) {
        self.poller.register(poller);
        *self.pass() = Pass::default();
    }

    fn pass(&self) -> std::sync::MutexGuard<'_, Pass> {
        // Nothing panics while it holds the lock.
        self.pass.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the code first passed it by, if it does. `polled_from` is when the poll of the code began that has just ended.
    #[cfg(feature = "worker")]
    fn passed_at(&self, polled_from: Instant) -> Option<Instant> {
        let mut pass = self.pass();
        if pass.passed_at.is_none() && pass.ready_since? < polled_from {
            pass.passed_at = Some(Instant::now());
        }
        pass.passed_at
    }
}

impl Wake for AtWorkStep {
    fn wake(self: Arc<Self>) {
        self.pass().ready_since.get_or_insert_with(Instant::now);
        self.poller.wake();
        // A stream that is not polled any more has told its own poller before, and does not again.
        if let Some(attempt) = self.attempt.upgrade() {
            attempt.driver.wake();
        }
    }
}

/// While it lives, a step is at work.
struct Listed<'a> {
    attempt: &'a Attempt,
    ordinal: u64,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.attempt.progress().at_work.remove(&self.ordinal);
    }
}

impl Attempt {
    /// Notes that a step that is at work holds a transaction for as long as the code polls it.
    pub(crate) fn holds_transaction(&self, ordinal: u64) {
        if let Some(step) = self.progress().at_work.get(&ordinal) {
            step.holds_transaction.store(true, Ordering::Relaxed);
        }
    }
}

/// The steps that the code passes by.
#[cfg(feature = "worker")]
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    /// How many have been passed by for long enough.
    pub(crate) count: usize,
    /// When the last of all was passed by first: later there may be more of them.
    pub(crate) last: Option<Instant>,
    /// When the first that holds a transaction was, and its key.
    pub(crate) transaction: Option<(Instant, String)>,
}

#[cfg(feature = "worker")]
impl Kept {
    /// Of these steps, after a poll of the code that began at this instant.
    pub(crate) fn among(at_work: &AtWork, polled_from: Instant) -> Self {
        let mut kept = Self::default();
        for step in at_work.values() {
            let Some(since) = step.passed_at(polled_from) else { continue };
            kept.count += usize::from(since.elapsed() >= KEPT);
            kept.last = kept.last.max(Some(since));
            if step.holds_transaction.load(Ordering::Relaxed)
                && kept.transaction.as_ref().is_none_or(|(first, _)| since < *first)
            {
                kept.transaction = Some((since, step.key.clone()));
            }
        }
        kept
    }
}

/// Why an attempt ends whose code keeps a step for too long.
#[cfg(feature = "worker")]
pub(crate) fn kept_for_too_long(key: &str) -> Halt {
    let message = format!(
        "step `{key}` holds a transaction that could go on, and the workflow's code has not polled it for {KEPT_IN_TRANSACTION:?}: it awaits something else, as \
         a loop over a stream does that awaits steps for an item; it was rolled back. Await the step before or together with what comes next (`join!`), drop it, or \
         make a transactional `#[job]` of its body and run that with `wf.run`, which goes on by itself"
    );
    Halt::Kept(Failure::new(FailureKind::Setup, message))
}
