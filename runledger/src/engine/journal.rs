//! The journal: every checkpoint and settlement of a process goes through it, many in one commit.
//!
//! Items go over bounded channels to a small number of writers. What a run writes always has the same one, so that a settlement that hands it back does not
//! overtake a step whose body was dropped meanwhile. Only completions all have the first writer: no step is needed any more, and a statement of a hundred
//! costs less than two of fifty. A writer sends what has gathered while its previous commit was in flight as one statement. The first item of an idle writer goes at once. An item is acknowledged after its commit.

use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::halt::Halt;
#[cfg(feature = "worker")]
use super::wakes::Wakes;
use crate::model::failure::Failure;
use crate::store::checkpoint::{Checkpoint, FailedTry, Fence};
use crate::store::output::Emitted;
use crate::store::progress::Noted;
#[cfg(feature = "worker")]
use crate::store::settle::Settled;
use crate::store::signal::Taking;

/// Items that may wait for a writer before their senders wait too: enough for some batches, and a bound on memory.
#[cfg(feature = "worker")]
const DEPTH: usize = 4096;

/// The writer of completions.
#[cfg(feature = "worker")]
const FIRST: usize = 0;

/// What became of an item.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Written {
    /// It is committed.
    Yes,
    /// The lease of its attempt is lost, or what it rests on may be; nothing was written.
    LeaseLost,
    /// What it stands on is not there any more, which only a failover brings about; nothing was written.
    Gone,
    /// The database refuses this item for good.
    Refused(Failure),
}

impl Written {
    /// Nothing, where it is committed.
    ///
    /// # Errors
    /// Why the attempt cannot go on.
    pub(crate) fn or_halt(self) -> Result<(), Halt> {
        match self {
            Self::Yes => Ok(()),
            Self::LeaseLost => Err(Halt::LeaseLost),
            Self::Gone => Err(Halt::FailedOver),
            Self::Refused(failure) => Err(Halt::Refused(failure)),
        }
    }
}

/// An item, and where its acknowledgement goes.
#[derive(Debug)]
pub(crate) enum Entry {
    Checkpoint(Box<Checkpoint>, oneshot::Sender<Written>),
    Taking(Box<Taking>, oneshot::Sender<Written>),
    FailedTry(Box<FailedTry>, oneshot::Sender<Written>),
    Noted(Box<Noted>, oneshot::Sender<Written>),
    Emitted(Box<Emitted>, oneshot::Sender<Written>),
    #[cfg(feature = "worker")]
    Settled(Box<Settled>, oneshot::Sender<Written>),
}

impl Entry {
    /// The run that it is a record of.
    #[cfg(feature = "worker")]
    pub(crate) fn run_id(&self) -> Uuid {
        let fence = match self {
            Self::Checkpoint(item, _) => item.fence(),
            Self::Taking(item, _) => item.fence(),
            Self::FailedTry(item, _) => item.fence(),
            Self::Noted(item, _) => item.fence(),
            Self::Emitted(item, _) => item.fence(),
            Self::Settled(item, _) => item.fence(),
        };
        fence.run_id
    }
}

/// The way into the journal. Cloning is cheap.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    writers: std::sync::Arc<[mpsc::Sender<Entry>]>,
    #[cfg(feature = "worker")]
    pub(crate) wakes: Wakes,
}

impl Journal {
    /// A journal, and the ends that its writers read from.
    #[cfg(feature = "worker")]
    pub(crate) fn new(writers: usize, wakes: Wakes) -> (Self, Vec<mpsc::Receiver<Entry>>) {
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..writers.max(1)).map(|_| mpsc::channel(DEPTH)).unzip();
        (Self { writers: senders.into(), wakes }, receivers)
    }

    /// Writes an item, and says what became of it.
    pub(crate) fn write<T: Journaled>(&self, item: T) -> impl Future<Output = Written> + Send {
        // On the heap before anything waits: the futures of the callers stay small.
        let item = Box::new(item);
        async move { acknowledged(self.enter(item).await).await }
    }

    /// Writes items of one run in their order: each is in the database no later than those behind it.
    pub(crate) async fn write_all<T: Journaled>(&self, items: Vec<T>) -> Vec<Written> {
        self.enter_all(items).await.written().await
    }

    /// Enters items of one run. An item is committed no later than an item of the same kind that the run enters afterwards. Values and
    /// steps are also committed no later than lines that the run enters afterwards.
    pub(crate) async fn enter_all<T: Journaled>(&self, items: Vec<T>) -> Entered {
        let mut entered = Vec::with_capacity(items.len());
        for item in items {
            entered.push(self.enter(Box::new(item)).await);
        }
        Entered(entered)
    }

    /// Returns when the writer of a run is gone: what it has not acknowledged by then it never will.
    pub(crate) async fn closed(&self, run_id: Uuid) {
        if let Some(writer) = self.writers.get(writer_of(run_id, self.writers.len())) {
            writer.closed().await;
        }
    }

    async fn enter<T: Journaled>(&self, item: Box<T>) -> oneshot::Receiver<Written> {
        let (acknowledge, entered) = oneshot::channel();
        if let Some(writer) = self.writers.get(item.writer(self.writers.len())) {
            // Where the writer is gone its acknowledgement does not come either.
            let _ = writer.send(T::ENTRY(item, acknowledge)).await;
        }
        entered
    }
}

/// Items in the journal that are not acknowledged yet.
#[derive(Debug)]
pub(crate) struct Entered(Vec<oneshot::Receiver<Written>>);

impl Entered {
    /// Waits for their acknowledgements.
    pub(crate) async fn written(self) -> Vec<Written> {
        let mut written = Vec::with_capacity(self.0.len());
        for item in self.0 {
            written.push(acknowledged(item).await);
        }
        written
    }
}

async fn acknowledged(entered: oneshot::Receiver<Written>) -> Written {
    match entered.await {
        Ok(written) => written,
        // The writers are gone: the worker has stopped. What is not written will be done again by whoever claims the run next.
        Err(_) => std::future::pending().await,
    }
}

/// What goes through the journal.
pub(crate) trait Journaled: Send + 'static {
    /// Makes an entry of it.
    const ENTRY: fn(Box<Self>, oneshot::Sender<Written>) -> Entry;

    /// The right to write it.
    fn fence(&self) -> Fence;

    /// Which of so many writers writes it.
    fn writer(&self, writers: usize) -> usize {
        writer_of(self.fence().run_id, writers)
    }
}

impl Journaled for Checkpoint {
    const ENTRY: fn(Box<Self>, oneshot::Sender<Written>) -> Entry = Entry::Checkpoint;

    fn fence(&self) -> Fence {
        self.fence
    }
}

impl Journaled for Taking {
    const ENTRY: fn(Box<Self>, oneshot::Sender<Written>) -> Entry = Entry::Taking;

    fn fence(&self) -> Fence {
        self.step.fence
    }
}

impl Journaled for FailedTry {
    const ENTRY: fn(Box<Self>, oneshot::Sender<Written>) -> Entry = Entry::FailedTry;

    fn fence(&self) -> Fence {
        self.fence
    }
}

impl Journaled for Noted {
    const ENTRY: fn(Box<Self>, oneshot::Sender<Written>) -> Entry = Entry::Noted;

    fn fence(&self) -> Fence {
        self.fence
    }
}

impl Journaled for Emitted {
    const ENTRY: fn(Box<Self>, oneshot::Sender<Written>) -> Entry = Entry::Emitted;

    fn fence(&self) -> Fence {
        self.fence
    }
}

#[cfg(feature = "worker")]
impl Journaled for Settled {
    const ENTRY: fn(Box<Self>, oneshot::Sender<Written>) -> Entry = Entry::Settled;

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
