//! Steps that hold a connection which others may need, for as long as the code does not poll them.
//!
//! A future that nobody polls does not go on, and what it holds is nobody's. That is the code's own affair, but for a transaction: its connection is the pool's, and
//! its locks are the database's. What owns all it needs is carried out apart from the code ([`apart`](super::task::apart)); what borrows from the code cannot be,
//! and ends the attempt where it is kept for too long.

use std::collections::HashMap;
use std::future::Future;
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

/// How long the code may keep a step that holds a connection and could go on, without polling it: longer than a machine is busy, and short for those who wait.
#[cfg(feature = "worker")]
pub(crate) const KEPT: Duration = Duration::from_secs(10);

/// The steps of an attempt that hold a connection, by key.
pub(crate) type Holders = HashMap<String, Arc<Holder>>;

/// Polls the work of a step that holds a connection, so that the attempt knows whether the code does.
pub(crate) async fn holding<T>(attempt: &Arc<Attempt>, key: &str, work: impl Future<Output = T>) -> T {
    let holder = Arc::new(Holder { attempt: Arc::downgrade(attempt), ..Holder::default() });
    attempt.progress().holders.insert(key.to_owned(), Arc::clone(&holder));
    let _held = Held { attempt, key };
    let waker = Waker::from(Arc::clone(&holder));
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|cx| {
        holder.polled_by(cx.waker());
        work.as_mut().poll(&mut Context::from_waker(&waker))
    })
    .await
}

/// What is known of a step that holds a connection.
#[derive(Debug, Default)]
pub(crate) struct Holder {
    attempt: Weak<Attempt>,
    /// Whoever polls the step.
    poller: AtomicWaker,
    /// Since when it could go on; none where it waits for the database, or was polled.
    ready_since: Mutex<Option<Instant>>,
}

impl Holder {
    fn polled_by(&self, poller: &Waker) {
        self.poller.register(poller);
        self.with_ready(|since| *since = None);
    }

    fn with_ready<T>(&self, work: impl FnOnce(&mut Option<Instant>) -> T) -> T {
        // Nothing panics while it holds the lock.
        work(&mut self.ready_since.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Wake for Holder {
    fn wake(self: Arc<Self>) {
        self.with_ready(|since| {
            since.get_or_insert_with(Instant::now);
        });
        self.poller.wake();
        // A stream that is not polled any more has told its own poller before, and does not again.
        if let Some(attempt) = self.attempt.upgrade() {
            attempt.driver.wake();
        }
    }
}

/// While it lives, a step holds a connection.
struct Held<'a> {
    attempt: &'a Attempt,
    key: &'a str,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.attempt.progress().holders.remove(self.key);
    }
}

#[cfg(feature = "worker")]
impl Attempt {
    /// The step that has been kept for longest, and since when.
    pub(crate) fn kept(&self) -> Option<(Instant, String)> {
        let progress = self.progress();
        let kept = progress.holders.iter().filter_map(|(key, holder)| {
            let since = holder.with_ready(|since| *since)?;
            Some((since, key))
        });
        kept.min().map(|(since, key)| (since, key.clone()))
    }
}

/// Why an attempt ends whose code keeps a step for too long.
#[cfg(feature = "worker")]
pub(crate) fn kept_for_too_long(key: &str) -> Halt {
    let message = format!(
        "step `{key}` holds a transaction that could go on, and the workflow's code has not polled it for {KEPT:?}: it awaits something else, as a loop over a \
         stream does that awaits steps for an item; it was rolled back. Await the step before or together with what comes next (`join!`), drop it, or make a \
         transactional `#[job]` of its body and run that with `wf.run`, which goes on by itself"
    );
    Halt::Kept(Failure::new(FailureKind::Setup, message))
}
