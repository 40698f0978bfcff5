//! Steps that are recorded apart: whatever becomes of the future that waits for them, since what they did is done and has to be known.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::attempt::Attempt;

/// The steps of an attempt that are being recorded apart.
#[derive(Debug, Default)]
pub(crate) struct RecordedApart {
    keys: Vec<String>,
    /// Whoever waits for the end of such.
    waiting: Vec<Waker>,
}

impl RecordedApart {
    /// Wakes whoever asks when one more of them is recorded. False where none of these steps is among them.
    fn wake_at_the_end_of_any(&mut self, cx: &Context<'_>, is_meant: impl Fn(&str) -> bool) -> bool {
        let is_any = self.keys.iter().any(|key| is_meant(key));
        if is_any && !self.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.waiting.push(cx.waker().clone());
        }
        is_any
    }
}

/// A step that is being recorded apart: until this is dropped it counts as one that works.
#[derive(Debug)]
pub(crate) struct Recording {
    attempt: Arc<Attempt>,
    key: String,
}

impl Recording {
    /// The attempt that records it.
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
    /// Begins to record a step apart.
    pub(crate) fn recording(self: &Arc<Self>, key: &str) -> Recording {
        let mut progress = self.progress();
        progress.active += 1;
        progress.recorded_apart.keys.push(key.to_owned());
        drop(progress);
        Recording { attempt: Arc::clone(self), key: key.to_owned() }
    }

    /// Waits until none of these steps is being recorded apart.
    pub(crate) async fn settled(&self, is_meant: impl Fn(&str) -> bool) {
        std::future::poll_fn(|cx| {
            let is_any = self.progress().recorded_apart.wake_at_the_end_of_any(cx, &is_meant);
            if is_any { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }
}
