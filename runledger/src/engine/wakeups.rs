//! Wakeups: what tells the steps of a resident run to look again at once. A nudge is a hint; each step looks by itself from time to time.

use tokio::sync::watch;

/// Where the steps of one attempt hear nudges.
#[derive(Debug)]
pub(crate) struct Wakeups(watch::Sender<()>);

impl Default for Wakeups {
    fn default() -> Self {
        Self(watch::Sender::new(()))
    }
}

impl Wakeups {
    /// Tells every step that listens.
    pub(crate) fn notify(&self) {
        self.0.send_replace(());
    }

    /// Listens from now on. To be called before the look that may find nothing.
    pub(crate) fn listen(&self) -> Listening {
        Listening(self.0.subscribe())
    }
}

/// A step that listens.
#[derive(Debug)]
pub(crate) struct Listening(watch::Receiver<()>);

impl Listening {
    /// Waits for the next nudge.
    pub(crate) async fn notified(&mut self) {
        if self.0.changed().await.is_err() {
            // The attempt has gone, and this future goes with it.
            std::future::pending::<()>().await;
        }
    }
}
