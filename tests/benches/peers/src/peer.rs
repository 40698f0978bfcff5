//! What a peer has to be able to do to be measured.

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

/// One peer, open on a fresh database for one figure.
pub trait Peer: Sized + Send + Sync + 'static {
    /// Its name in the crate registry.
    const NAME: &'static str;
    /// What it can do, with the best settings found. Two of one name differ in a setting that is worth a run of its own.
    const FIGURES: &'static [Figure];
    const TABLES: Tables;

    /// Makes the peer's schema and all that is ready before anything is timed.
    fn open(url: &str, figure: Figure) -> impl Future<Output = Result<Self>>;

    /// The settings that were chosen for this figure.
    fn notes(&self) -> String;

    /// One job, in a transaction of its own.
    fn enqueue(&self, job: Payload) -> impl Future<Output = Result<()>> + Send;

    /// One job and the row `number` of the table `business`, in one transaction of the caller's.
    fn enqueue_with_row(&self, _number: i64, _job: Payload) -> impl Future<Output = Result<()>> + Send {
        async { Err(format!("{} has no enqueue in the caller's transaction", Self::NAME).into()) }
    }

    /// The peer's own way to enqueue many at once; `None` where it has none.
    fn enqueue_batch(&self, jobs: Vec<Payload>) -> Option<impl Future<Output = Result<()>>>;

    /// So many jobs in one transaction, by the peer's own way into one of the caller's; gives the instant before its commit.
    fn enqueue_together(&self, _jobs: u64) -> impl Future<Output = Result<Instant>> {
        async { Err(format!("{} has no enqueue in the caller's transaction", Self::NAME).into()) }
    }

    /// So many jobs that no worker serves.
    fn enqueue_unknown(&self, _jobs: Vec<Payload>) -> impl Future<Output = Result<()>> {
        async { Err(format!("{} is not asked for jobs that nobody serves", Self::NAME).into()) }
    }

    /// So many jobs or workflows that stand in the middle for ever, where the process holds; waits until the database says that they do.
    fn enqueue_held(&self, _n: u64, _database: &mut Database) -> impl Future<Output = Result<()>> {
        async { Err(format!("{} is not asked for anything held", Self::NAME).into()) }
    }

    /// Starts a worker; the task ends only where the worker does.
    fn work(&self, concurrency: u64) -> impl Future<Output = Result<JoinHandle<Result<()>>>>;

    /// Submits so many workflows of so many steps, and sees to it that so many of them run at a time.
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

/// The peer of this name.
pub fn find(name: &str) -> Result<&'static Entry> {
    ALL.iter().find(|entry| entry.name == name).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|entry| entry.name).collect();
        format!("there is no peer `{name}`; there are: {}", names.join(", ")).into()
    })
}
