//! Guards that count a step as working or waiting. A run whose steps all wait can leave its worker.

use std::ops::Deref;
use std::sync::Arc;
use std::task::Poll;

use crate::engine::attempt::stop::Wait;
use crate::engine::attempt::{Attempt, Mode};

impl Attempt {
    /// Counts a step as working until the guard is dropped.
    ///
    /// All work for an unrecorded step begins here, so a rehearsal does none. The work begins when
    /// [`Replay::may_begin`] allows it: code that never reaches the end of its history has changed,
    /// and must execute nothing before that is detected.
    pub(crate) async fn begin_work(&self) -> Working<&Self> {
        Self::begin_work_of(self).await
    }

    /// Like [`Self::begin_work`], but the guard owns the attempt. For work that continues even if
    /// the step is not polled.
    pub(crate) async fn begin_work_of<A: Deref<Target = Self>>(attempt: A) -> Working<A> {
        if attempt.mode == Mode::Work {
            attempt.may_begin().await;
        }
        attempt.progress().active += 1;
        let working = Working(attempt);
        if !working.0.works() {
            std::future::pending::<()>().await;
        }
        working
    }

    async fn may_begin(&self) {
        std::future::poll_fn(|cx| {
            let mut progress = self.progress();
            if progress.replay.may_begin() {
                return Poll::Ready(());
            }
            progress.early.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Notes what a step waits for until the guard is dropped.
    pub(crate) fn waiting(&self, ordinal: u64, wait: Wait) -> Waiting<&Self> {
        Self::waiting_of(self, ordinal, wait)
    }

    /// Like [`Self::waiting`], but the guard owns the attempt.
    pub(crate) fn waiting_of<A: Deref<Target = Self>>(attempt: A, ordinal: u64, wait: Wait) -> Waiting<A> {
        attempt.progress().waits.insert(ordinal, wait);
        Waiting(attempt, ordinal)
    }
}

/// The guard of a working step.
#[derive(Debug)]
pub(crate) struct Working<A: Deref<Target = Attempt>>(A);

impl Working<Arc<Attempt>> {
    /// Ends detached work. Wakes the executor, because the body may have dropped the step and
    /// nothing else would show that the run is idle.
    pub(crate) fn ends_apart(self) {
        let attempt = Arc::clone(&self.0);
        drop(self);
        attempt.driver.wake();
    }

    /// Like [`Self::ends_apart`], for work with a result: the run is not idle before the body was
    /// polled with it.
    pub(crate) fn ends_with_news(self) {
        self.0.progress().has_news = true;
        self.ends_apart();
    }
}

impl<A: Deref<Target = Attempt>> Drop for Working<A> {
    fn drop(&mut self) {
        let mut progress = self.0.progress();
        progress.active = progress.active.saturating_sub(1);
    }
}

/// The guard of a waiting step.
#[derive(Debug)]
pub(crate) struct Waiting<A: Deref<Target = Attempt>>(A, u64);

impl<A: Deref<Target = Attempt>> Drop for Waiting<A> {
    fn drop(&mut self) {
        self.0.progress().waits.remove(&self.1);
    }
}
