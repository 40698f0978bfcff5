//! The commit queue: all checkpoints and settlements of a process, many in one commit.
//!
//! Items go through bounded channels to a few writers. All items of a run go to the same writer. A
//! settlement that releases the run then cannot overtake a step whose body was dropped. Only
//! completions all go to the first writer: no step follows them, and one statement of a hundred
//! costs less than two of fifty.
//!
//! A writer sends everything that arrived during its previous commit as one statement. An idle
//! writer sends the first item at once. Items are acknowledged after their commit.

#[cfg(feature = "worker")]
mod by_writers;

use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::engine::attempt::stop::StopReason;
use crate::engine::wakes::Wakes;
use crate::model::run::failure::Failure;
use crate::store::attempt::checkpoint::{Checkpoint, FailedTry, Fence};
use crate::store::attempt::output::Emitted;
use crate::store::attempt::progress::ProgressWrite;
use crate::store::attempt::settle::Settled;
use crate::store::attempt::signal::SignalTake;

/// The result of writing an item.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WriteResult {
    /// It is committed.
    Yes,
    /// The attempt has lost its lease, or may depend on a lost record. Nothing was written.
    LeaseLost,
    /// A row that the item needs is gone, which only a failover causes. Nothing was written.
    Gone,
    /// The database refuses this item for good.
    Refused(Failure),
}

impl WriteResult {
    /// Succeeds if the item is committed.
    ///
    /// # Errors
    /// Why the attempt must stop.
    pub(crate) fn or_stop(self) -> Result<(), StopReason> {
        match self {
            Self::Yes => Ok(()),
            Self::LeaseLost => Err(StopReason::LeaseLost),
            Self::Gone => Err(StopReason::FailedOver),
            Self::Refused(failure) => Err(StopReason::Refused(failure)),
        }
    }
}

/// An item and the channel for its acknowledgement.
#[derive(Debug)]
pub(crate) enum WriteItem {
    Checkpoint(Box<Checkpoint>, oneshot::Sender<WriteResult>),
    SignalTake(Box<SignalTake>, oneshot::Sender<WriteResult>),
    FailedTry(Box<FailedTry>, oneshot::Sender<WriteResult>),
    ProgressWrite(Box<ProgressWrite>, oneshot::Sender<WriteResult>),
    Emitted(Box<Emitted>, oneshot::Sender<WriteResult>),
    Settled(Box<Settled>, oneshot::Sender<WriteResult>),
}

/// The sending side of the commit queue. Cloning is cheap.
#[derive(Clone, Debug)]
pub(crate) struct CommitQueue {
    writers: std::sync::Arc<[mpsc::Sender<WriteItem>]>,
    pub(crate) wakes: Wakes,
}

impl CommitQueue {
    /// Writes an item and returns the result.
    pub(crate) fn write<T: CommitItem>(&self, item: T) -> impl Future<Output = WriteResult> + Send {
        // Box the item before anything waits, so that the futures of the callers stay small.
        let item = Box::new(item);
        async move { acknowledged(self.push(item).await).await }
    }

    /// Writes items of one run in order: no item is committed before an earlier one.
    pub(crate) async fn write_all<T: CommitItem>(&self, items: Vec<T>) -> Vec<WriteResult> {
        self.push_all(items).await.written().await
    }

    /// Pushes items of one run. An item is committed no later than an item of the same kind that
    /// the run pushes afterwards. Values and steps are also committed no later than lines that the
    /// run pushes afterwards.
    pub(crate) async fn push_all<T: CommitItem>(&self, items: Vec<T>) -> Pushed {
        let mut entered = Vec::with_capacity(items.len());
        for item in items {
            entered.push(self.push(Box::new(item)).await);
        }
        Pushed(entered)
    }

    /// Returns when the writer of a run is gone. It acknowledges nothing after that.
    pub(crate) async fn closed(&self, run_id: Uuid) {
        if let Some(writer) = self.writers.get(writer_of(run_id, self.writers.len())) {
            writer.closed().await;
        }
    }

    async fn push<T: CommitItem>(&self, item: Box<T>) -> oneshot::Receiver<WriteResult> {
        let (acknowledge, entered) = oneshot::channel();
        if let Some(writer) = self.writers.get(item.writer(self.writers.len())) {
            // If the writer is gone, no acknowledgement comes either.
            let _ = writer.send(T::ENTRY(item, acknowledge)).await;
        }
        entered
    }
}

/// Items in the commit queue that are not acknowledged yet.
#[derive(Debug)]
pub(crate) struct Pushed(Vec<oneshot::Receiver<WriteResult>>);

impl Pushed {
    /// Waits for the acknowledgements.
    pub(crate) async fn written(self) -> Vec<WriteResult> {
        let mut written = Vec::with_capacity(self.0.len());
        for item in self.0 {
            written.push(acknowledged(item).await);
        }
        written
    }
}

async fn acknowledged(entered: oneshot::Receiver<WriteResult>) -> WriteResult {
    match entered.await {
        Ok(written) => written,
        // The writers are gone because the worker has stopped. The next worker that claims the run
        // does the unwritten work again.
        Err(_) => std::future::pending().await,
    }
}

/// An item of the commit queue.
pub(crate) trait CommitItem: Send + 'static {
    /// Makes an entry of it.
    const ENTRY: fn(Box<Self>, oneshot::Sender<WriteResult>) -> WriteItem;

    /// The fence of the write.
    fn fence(&self) -> Fence;

    /// The index of the item's writer.
    fn writer(&self, writers: usize) -> usize {
        writer_of(self.fence().run_id, writers)
    }
}

impl CommitItem for Checkpoint {
    const ENTRY: fn(Box<Self>, oneshot::Sender<WriteResult>) -> WriteItem = WriteItem::Checkpoint;

    fn fence(&self) -> Fence {
        self.fence
    }
}

impl CommitItem for SignalTake {
    const ENTRY: fn(Box<Self>, oneshot::Sender<WriteResult>) -> WriteItem = WriteItem::SignalTake;

    fn fence(&self) -> Fence {
        self.step.fence
    }
}

impl CommitItem for FailedTry {
    const ENTRY: fn(Box<Self>, oneshot::Sender<WriteResult>) -> WriteItem = WriteItem::FailedTry;

    fn fence(&self) -> Fence {
        self.fence
    }
}

impl CommitItem for ProgressWrite {
    const ENTRY: fn(Box<Self>, oneshot::Sender<WriteResult>) -> WriteItem = WriteItem::ProgressWrite;

    fn fence(&self) -> Fence {
        self.fence
    }
}

impl CommitItem for Emitted {
    const ENTRY: fn(Box<Self>, oneshot::Sender<WriteResult>) -> WriteItem = WriteItem::Emitted;

    fn fence(&self) -> Fence {
        self.fence
    }
}

/// The writer of a run. Uses the last byte of the id, which is random; the first bytes are its
/// time.
fn writer_of(run_id: Uuid, writers: usize) -> usize {
    usize::from(run_id.as_bytes()[15]) % writers.max(1)
}
