//! The interface that a peer implements to be measured.

use std::{future::Future, pin::Pin, time::Instant};

use tokio::task::JoinHandle;

use crate::{
    Result,
    body::Payload,
    database::{Database, Tables},
    figure::{Figure, Outcome},
    measure::measure,
    peers::{
        apalis::Apalis, dbos::Dbos, graphile_worker::GraphileWorker, riverqueue::River, underway::Underway,
    },
    process::serve,
};

/// Every peer, in the order of `list`.
pub const ALL: &[Entry] = &[
    Entry::of::<GraphileWorker>(),
    Entry::of::<Dbos>(),
    Entry::of::<Underway>(),
    Entry::of::<Apalis>(),
    Entry::of::<River>(),
];

/// A peer, open on a fresh database for one figure.
pub trait Peer: Sized + Send + Sync + 'static {
    /// Its name in the crate registry.
    const NAME: &'static str;
    /// The peer's figures, with the best settings found. Two entries of one figure differ in a
    /// setting that deserves its own run.
    const FIGURES: &'static [Figure];
    const TABLES: Tables;

    /// Creates the peer's schema and everything that exists before the measured time.
    fn open(url: &str, figure: Figure) -> impl Future<Output = Result<Self>>;

    /// The settings for this figure.
    fn notes(&self) -> String;

    /// Enqueues one job in its own transaction.
    fn enqueue(&self, job: Payload) -> impl Future<Output = Result<()>> + Send;

    /// Enqueues one job and inserts the row `number` into `business`, in one transaction of the
    /// caller.
    fn enqueue_with_row(&self, _number: i64, _job: Payload) -> impl Future<Output = Result<()>> + Send {
        async { Err(format!("{} has no enqueue in the caller's transaction", Self::NAME).into()) }
    }

    /// Enqueues many jobs with the peer's own bulk call. `None` if it has none.
    fn enqueue_batch(&self, jobs: Vec<Payload>) -> Option<impl Future<Output = Result<()>>>;

    /// Enqueues `_jobs` jobs in one transaction of the caller. Returns the instant before the
    /// commit.
    fn enqueue_together(&self, _jobs: u64) -> impl Future<Output = Result<Instant>> {
        async { Err(format!("{} has no enqueue in the caller's transaction", Self::NAME).into()) }
    }

    /// Enqueues jobs that no worker serves.
    fn enqueue_unknown(&self, _jobs: Vec<Payload>) -> impl Future<Output = Result<()>> {
        async { Err(format!("{} is not asked for jobs that nobody serves", Self::NAME).into()) }
    }

    /// Enqueues `_n` jobs or workflows that never pass their middle in a process with
    /// [`hold`](crate::body::hold). Waits until the database shows all of them there.
    fn enqueue_held(&self, _n: u64, _database: &mut Database) -> impl Future<Output = Result<()>> {
        async { Err(format!("{} is not asked for anything held", Self::NAME).into()) }
    }

    /// Starts a worker. The task ends only with the worker.
    fn work(&self, concurrency: u64) -> impl Future<Output = Result<JoinHandle<Result<()>>>>;

    /// Submits workflows and runs `_concurrency` of them at a time.
    fn workflows(
        &self,
        _workflows: u64,
        _steps: u64,
        _concurrency: u64,
    ) -> impl Future<Output = Result<JoinHandle<Result<()>>>> {
        async { Err(format!("{} has no workflows", Self::NAME).into()) }
    }
}

type Measured = Pin<Box<dyn Future<Output = Result<(Outcome, String)>>>>;
type Served = Pin<Box<dyn Future<Output = Result<()>>>>;

/// A peer without its type.
pub struct Entry {
    pub name: &'static str,
    pub figures: &'static [Figure],
    pub measure: fn(String, Figure) -> Measured,
    pub serve: fn(String, Figure) -> Served,
}

impl Entry {
    const fn of<P: Peer>() -> Self {
        Self {
            name: P::NAME,
            figures: P::FIGURES,
            measure: |url, figure| Box::pin(measure::<P>(url, figure)),
            serve: |url, figure| Box::pin(serve::<P>(url, figure)),
        }
    }
}

pub fn find(name: &str) -> Result<&'static Entry> {
    ALL.iter().find(|entry| entry.name == name).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|entry| entry.name).collect();
        format!("there is no peer `{name}`; there are: {}", names.join(", ")).into()
    })
}
