//! The commit queue: every checkpoint and settlement of a process goes through it, many in one commit.
//!
//! Items go over bounded channels to a small number of writers. What a run writes always has the same one, so that a settlement that hands it back does not
//! overtake a step whose body was dropped meanwhile. Only completions all have the first writer: no step is needed any more, and a statement of a hundred
//! costs less than two of fifty. A writer sends what has gathered while its previous commit was in flight as one statement. The first item of an idle writer goes at once. An item is acknowledged after its commit.

use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::stop::StopReason;
#[cfg(feature = "worker")]
use super::wakes::Wakes;
use crate::model::failure::Failure;
use crate::store::checkpoint::{Checkpoint, FailedTry, Fence};
use crate::store::output::Emitted;
use crate::store::progress::ProgressWrite;
#[cfg(feature = "worker")]
use crate::store::settle::Settled;
use crate::store::signal::SignalTake;

/// Items that may wait for a writer before their senders wait too: enough for some batches, and a bound on memory.
#[cfg(feature = "worker")]
const DEPTH: usize = 4096;

/// The writer of completions.
#[cfg(feature = "worker")]
const FIRST: usize = 0;

/// What became of an item.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WriteResult {
    /// It is committed.
    Yes,
    /// The lease of its attempt is lost, or what it rests on may be; nothing was written.
    LeaseLost,
    /// What it stands on is not there any more, which only a failover brings about; nothing was written.
    Gone,
    /// The database refuses this item for good.
    Refused(Failure),
}

impl WriteResult {
    /// Nothing, where it is committed.
    ///
    /// # Errors
    /// Why the attempt cannot go on.
    pub(crate) fn or_stop(self) -> Result<(), StopReason> {
        match self {
            Self::Yes => Ok(()),
            Self::LeaseLost => Err(StopReason::LeaseLost),
            Self::Gone => Err(StopReason::FailedOver),
            Self::Refused(failure) => Err(StopReason::Refused(failure)),
        }
    }
}

/// An item, and where its acknowledgement goes.
#[derive(Debug)]
pub(crate) enum WriteItem {
    Checkpoint(Box<Checkpoint>, oneshot::Sender<WriteResult>),
    SignalTake(Box<SignalTake>, oneshot::Sender<WriteResult>),
    FailedTry(Box<FailedTry>, oneshot::Sender<WriteResult>),
    ProgressWrite(Box<ProgressWrite>, oneshot::Sender<WriteResult>),
    Emitted(Box<Emitted>, oneshot::Sender<WriteResult>),
    #[cfg(feature = "worker")]
    Settled(Box<Settled>, oneshot::Sender<WriteResult>),
}

impl WriteItem {
    /// The run that it is a record of.
    #[cfg(feature = "worker")]
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

/// The way into the commit queue. Cloning is cheap.
#[derive(Clone, Debug)]
pub(crate) struct CommitQueue {
    writers: std::sync::Arc<[mpsc::Sender<WriteItem>]>,
    #[cfg(feature = "worker")]
    pub(crate) wakes: Wakes,
}

impl CommitQueue {
    /// A commit queue, and the ends that its writers read from.
    #[cfg(feature = "worker")]
    pub(crate) fn new(writers: usize, wakes: Wakes) -> (Self, Vec<mpsc::Receiver<WriteItem>>) {
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..writers.max(1)).map(|_| mpsc::channel(DEPTH)).unzip();
        (Self { writers: senders.into(), wakes }, receivers)
    }

    /// Writes an item, and says what became of it.
    pub(crate) fn write<T: CommitItem>(&self, item: T) -> impl Future<Output = WriteResult> + Send {
        // On the heap before anything waits: the futures of the callers stay small.
        let item = Box::new(item);
        async move { acknowledged(self.push(item).await).await }
    }

    /// Writes items of one run in their order: each is in the database no later than those behind it.
    pub(crate) async fn write_all<T: CommitItem>(&self, items: Vec<T>) -> Vec<WriteResult> {
        self.push_all(items).await.written().await
    }

    /// Enters items of one run. An item is committed no later than an item of the same kind that the run enters afterwards. Values and
    /// steps are also committed no later than lines that the run enters afterwards.
    pub(crate) async fn push_all<T: CommitItem>(&self, items: Vec<T>) -> Pushed {
        let mut entered = Vec::with_capacity(items.len());
        for item in items {
            entered.push(self.push(Box::new(item)).await);
        }
        Pushed(entered)
    }

    /// Returns when the writer of a run is gone: what it has not acknowledged by then it never will.
    pub(crate) async fn closed(&self, run_id: Uuid) {
        if let Some(writer) = self.writers.get(writer_of(run_id, self.writers.len())) {
            writer.closed().await;
        }
    }

    async fn push<T: CommitItem>(&self, item: Box<T>) -> oneshot::Receiver<WriteResult> {
        let (acknowledge, entered) = oneshot::channel();
        if let Some(writer) = self.writers.get(item.writer(self.writers.len())) {
            // Where the writer is gone its acknowledgement does not come either.
            let _ = writer.send(T::ENTRY(item, acknowledge)).await;
        }
        entered
    }
}

/// Items in the commit queue that are not acknowledged yet.
#[derive(Debug)]
pub(crate) struct Pushed(Vec<oneshot::Receiver<WriteResult>>);

impl Pushed {
    /// Waits for their acknowledgements.
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
        // The writers are gone: the worker has stopped. What is not written will be done again by whoever claims the run next.
        Err(_) => std::future::pending().await,
    }
}

/// What goes through the commit queue.
pub(crate) trait CommitItem: Send + 'static {
    /// Makes an entry of it.
    const ENTRY: fn(Box<Self>, oneshot::Sender<WriteResult>) -> WriteItem;

    /// The right to write it.
    fn fence(&self) -> Fence;

    /// Which of so many writers writes it.
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

#[cfg(feature = "worker")]
impl CommitItem for Settled {
    const ENTRY: fn(Box<Self>, oneshot::Sender<WriteResult>) -> WriteItem = WriteItem::Settled;

    fn fence(&self) -> Fence {
        self.fence
    }

    fn writer(&self, writers: usize) -> usize {
        if self.completes() { FIRST } else { writer_of(self.fence.run_id, writers) }
    }
}

/// The writer of a run. The last bytes of an id are random; the first are its time.
fn writer_of(run_id: Uuid, writers: usize) -> usize {
    usize::from(run_id.as_bytes()[15]) % writers.max(1)
}
