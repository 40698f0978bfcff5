//! The journal: every checkpoint and settlement of a process goes through it, many in one commit.
//!
//! Items go over bounded channels to a small number of writers. What a run writes always has the same one, so that a settlement that hands it back does not
//! overtake a step whose body was dropped meanwhile. Only completions all have the first writer: no step is needed any more, and a statement of a hundred
//! costs less than two of fifty. A writer sends what has gathered while its previous commit was in flight as one statement. The first item of an idle writer goes at once. An item is acknowledged after its commit.

use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::model::failure::Failure;
#[cfg(feature = "worker")]
use crate::model::settle::Verdict;
use crate::store::checkpoint::{Checkpoint, FailedTry};
use crate::store::output::Emitted;
use crate::store::progress::Noted;
#[cfg(feature = "worker")]
use crate::store::settle::Settled;

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
    /// The lease of its attempt is lost; nothing was written.
    LeaseLost,
    /// The database refuses this item for good.
    Refused(Failure),
}

/// An item, and where its acknowledgement goes.
#[derive(Debug)]
pub(crate) enum Entry {
    Checkpoint(Box<Checkpoint>, oneshot::Sender<Written>),
    FailedTry(Box<FailedTry>, oneshot::Sender<Written>),
    Noted(Box<Noted>, oneshot::Sender<Written>),
    Emitted(Box<Emitted>, oneshot::Sender<Written>),
    #[cfg(feature = "worker")]
    Settled(Box<Settled>, oneshot::Sender<Written>),
}

/// The way into the journal. Cloning is cheap.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    writers: std::sync::Arc<[mpsc::Sender<Entry>]>,
}

impl Journal {
    /// A journal, and the ends that its writers read from.
    #[cfg(feature = "worker")]
    pub(crate) fn new(writers: usize) -> (Self, Vec<mpsc::Receiver<Entry>>) {
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..writers.max(1)).map(|_| mpsc::channel(DEPTH)).unzip();
        (Self { writers: senders.into() }, receivers)
    }

    /// Records a step.
    pub(crate) async fn checkpoint(&self, step: Checkpoint) -> Written {
        let writer = writer_of(step.fence.run_id, self.writers.len());
        self.send(writer, |acknowledge| Entry::Checkpoint(Box::new(step), acknowledge)).await
    }

    /// Keeps a failed try of a step.
    pub(crate) async fn failed_try(&self, item: FailedTry) -> Written {
        let writer = writer_of(item.fence.run_id, self.writers.len());
        self.send(writer, |acknowledge| Entry::FailedTry(Box::new(item), acknowledge)).await
    }

    /// Keeps what a body says of how far it is.
    pub(crate) async fn note(&self, item: Noted) -> Written {
        let writer = writer_of(item.fence.run_id, self.writers.len());
        self.send(writer, |acknowledge| Entry::Noted(Box::new(item), acknowledge)).await
    }

    /// Appends a line to the output of a run.
    pub(crate) async fn emit(&self, item: Emitted) -> Written {
        let writer = writer_of(item.fence.run_id, self.writers.len());
        self.send(writer, |acknowledge| Entry::Emitted(Box::new(item), acknowledge)).await
    }

    /// Appends lines of one run in their order.
    pub(crate) async fn emit_all(&self, items: Vec<Emitted>) -> Vec<Written> {
        let Some(writer) = items.first().map(|item| writer_of(item.fence.run_id, self.writers.len())) else {
            return Vec::new();
        };
        self.send_all(writer, items, Entry::Emitted).await
    }

    /// Records steps of one run in their order: each is in the database no later than those behind it.
    pub(crate) async fn checkpoint_all(&self, items: Vec<Checkpoint>) -> Vec<Written> {
        let Some(writer) = items.first().map(|item| writer_of(item.fence.run_id, self.writers.len())) else {
            return Vec::new();
        };
        self.send_all(writer, items, Entry::Checkpoint).await
    }

    /// Settles a run.
    #[cfg(feature = "worker")]
    pub(crate) async fn settle(&self, item: Settled) -> Written {
        let writer = match item.settlement.verdict {
            Verdict::Complete(_) => FIRST,
            _ => writer_of(item.fence.run_id, self.writers.len()),
        };
        self.send(writer, |acknowledge| Entry::Settled(Box::new(item), acknowledge)).await
    }

    /// Items enter the journal one after the other, and are waited for together.
    async fn send_all<T>(
        &self,
        writer: usize,
        items: Vec<T>,
        entry: fn(Box<T>, oneshot::Sender<Written>) -> Entry,
    ) -> Vec<Written> {
        let mut acknowledged = Vec::with_capacity(items.len());
        for item in items {
            let (acknowledge, written) = oneshot::channel();
            if let Some(writer) = self.writers.get(writer) {
                // Where the writer is gone its acknowledgement does not come either.
                let _ = writer.send(entry(Box::new(item), acknowledge)).await;
            }
            acknowledged.push(written);
        }
        let mut all = Vec::with_capacity(acknowledged.len());
        for written in acknowledged {
            match written.await {
                Ok(written) => all.push(written),
                // As in `send`.
                Err(_) => std::future::pending().await,
            }
        }
        all
    }

    async fn send(&self, writer: usize, entry: impl FnOnce(oneshot::Sender<Written>) -> Entry) -> Written {
        let (acknowledge, acknowledged) = oneshot::channel();
        if let Some(writer) = self.writers.get(writer)
            && writer.send(entry(acknowledge)).await.is_ok()
            && let Ok(written) = acknowledged.await
        {
            return written;
        }
        // The writers are gone: the worker has stopped. What is not written will be done again by whoever claims the run next.
        std::future::pending().await
    }
}

/// The writer of a run. The last bytes of an id are random; the first are its time.
fn writer_of(run_id: Uuid, writers: usize) -> usize {
    usize::from(run_id.as_bytes()[15]) % writers.max(1)
}
