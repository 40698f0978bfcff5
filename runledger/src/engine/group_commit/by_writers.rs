//! The commit queue, as its writers use it.

use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::{CommitItem, CommitQueue, WriteItem, WriteResult, writer_of};
use crate::engine::wakes::Wakes;
use crate::store::attempt::checkpoint::Fence;
use crate::store::attempt::settle::Settled;

/// How many items may wait for a writer before senders wait too: enough for several batches, and a
/// bound on memory.
const DEPTH: usize = 4096;

/// The writer of completions.
const FIRST: usize = 0;

impl CommitQueue {
    /// Creates a commit queue and the receivers of its writers.
    pub(crate) fn new(writers: usize, wakes: Wakes) -> (Self, Vec<mpsc::Receiver<WriteItem>>) {
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..writers.max(1)).map(|_| mpsc::channel(DEPTH)).unzip();
        (Self { writers: senders.into(), wakes }, receivers)
    }
}

impl WriteItem {
    /// The run of the item.
    pub(crate) fn run_id(&self) -> Uuid {
        let fence = match self {
            Self::Checkpoint(item, _) => item.fence(),
            Self::SignalTake(item, _) => item.fence(),
            Self::FailedTry(item, _) => item.fence(),
            Self::ProgressWrite(item, _) => item.fence(),
            Self::Emitted(item, _) => item.fence(),
            Self::Settled(item, _) => item.fence(),
        };
        fence.run_id
    }
}

impl CommitItem for Settled {
    const ENTRY: fn(Box<Self>, oneshot::Sender<WriteResult>) -> WriteItem = WriteItem::Settled;

    fn fence(&self) -> Fence {
        self.fence
    }

    fn writer(&self, writers: usize) -> usize {
        if self.completes() { FIRST } else { writer_of(self.fence.run_id, writers) }
    }
}
