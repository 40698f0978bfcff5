//! Accepts runs that another transaction had locked. A task of the worker wakes them later.

use tokio::sync::mpsc;
use uuid::Uuid;

/// Accepts runs to wake. Cloning is cheap.
#[derive(Clone, Debug)]
pub(crate) struct Wakes(mpsc::UnboundedSender<Uuid>);

impl Wakes {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Uuid>) {
        let (owe, owed) = mpsc::unbounded_channel();
        (Self(owe), owed)
    }

    /// Adds runs. If the worker has stopped, the safety sweeps of another worker wake them.
    pub(crate) fn owe(&self, owed: impl IntoIterator<Item = Uuid>) {
        for run_id in owed {
            let _ = self.0.send(run_id);
        }
    }
}
