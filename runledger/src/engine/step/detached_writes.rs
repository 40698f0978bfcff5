//! Steps that a detached task records. The record is written even if the waiting future is dropped,
//! because the step's effects have happened.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::engine::attempt::Attempt;

/// The steps of an attempt that detached tasks record.
#[derive(Debug, Default)]
pub(crate) struct RecordedApart {
    keys: Vec<String>,
    /// The tasks that wait until a record is written.
    waiting: Vec<Waker>,
}

impl RecordedApart {
    /// Registers a wake-up for when the next of these records is written. Returns false if no
    /// detached task records one of these steps.
    fn wake_at_the_end_of_any(&mut self, cx: &Context<'_>, is_meant: impl Fn(&str) -> bool) -> bool {
        let is_any = self.keys.iter().any(|key| is_meant(key));
        if is_any && !self.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.waiting.push(cx.waker().clone());
        }
        is_any
    }
}

/// A step that a detached task records. Counts as working until this is dropped.
#[derive(Debug)]
pub(crate) struct Recording {
    attempt: Arc<Attempt>,
    key: String,
}

impl Recording {
    /// The attempt of the step.
    pub(crate) fn attempt(&self) -> &Arc<Attempt> {
        &self.attempt
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let mut progress = self.attempt.progress();
        progress.active = progress.active.saturating_sub(1);
        let apart = &mut progress.recorded_apart;
        if let Some(place) = apart.keys.iter().position(|key| *key == self.key) {
            apart.keys.swap_remove(place);
        }
        apart.waiting.drain(..).for_each(Waker::wake);
        drop(progress);
        self.attempt.driver.wake();
    }
}

impl Attempt {
    /// Begins to record a step in a detached task.
    pub(crate) fn recording(self: &Arc<Self>, key: &str) -> Recording {
        let mut progress = self.progress();
        progress.active += 1;
        progress.recorded_apart.keys.push(key.to_owned());
        drop(progress);
        Recording { attempt: Arc::clone(self), key: key.to_owned() }
    }

    /// Waits until no detached task records one of these steps.
    pub(crate) async fn settled(&self, is_meant: impl Fn(&str) -> bool) {
        std::future::poll_fn(|cx| {
            let is_any = self.progress().recorded_apart.wake_at_the_end_of_any(cx, &is_meant);
            if is_any { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }
}
