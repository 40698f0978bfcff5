//! Wakeups make the steps of a resident run poll at once. They are hints: each step also polls by
//! timer.

use tokio::sync::watch;

/// The wake-up channel of one attempt's steps.
#[derive(Debug)]
pub(crate) struct Wakeups(watch::Sender<()>);

impl Default for Wakeups {
    fn default() -> Self {
        Self(watch::Sender::new(()))
    }
}

impl Wakeups {
    /// Wakes every listening step.
    pub(crate) fn notify(&self) {
        self.0.send_replace(());
    }

    /// Listens from now on. Call it before the poll that may find nothing.
    pub(crate) fn listen(&self) -> Listening {
        Listening(self.0.subscribe())
    }
}

/// A listening step.
#[derive(Debug)]
pub(crate) struct Listening(watch::Receiver<()>);

impl Listening {
    /// Waits for the next wake-up.
    pub(crate) async fn notified(&mut self) {
        if self.0.changed().await.is_err() {
            // The attempt is gone, and this future is about to be dropped.
            std::future::pending::<()>().await;
        }
    }
}
