//! The cost of a job or a step to the server.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::sleep;

use super::{TOLD, fill, workflows};
use crate::{Result, database::Database, figure::Outcome, peer::Peer, process::Process};

/// After this time the sessions of a killed process have ended and reported their work.
const ENDED: Duration = Duration::from_secs(1);
/// The pause between two queries. Each query is one of the counted commits.
const RARELY: Duration = Duration::from_millis(100);

/// A database's costs so far, read after a pause in which every session reports them.
#[derive(Clone, Copy)]
struct Costs {
    wal: u64,
    transactions: u64,
}

impl Costs {
    async fn told(database: &Database, url: &str, after: Duration) -> Result<Self> {
        sleep(after).await;
        let (wal, transactions) = database.costs(url).await?;
        Ok(Self { wal, transactions })
    }

    /// WAL bytes and commits per unit since `before`.
    fn each(self, before: Self, n: u64) -> (f64, f64) {
        let each = |count: u64| count as f64 / n as f64;
        (each(self.wal - before.wal), each(self.transactions - before.transactions))
    }
}

pub async fn jobs<P: Peer>(peer: &Arc<P>, database: &mut Database, url: &str, jobs: u64) -> Result<Outcome> {
    let made = database.wal().await?;
    fill(peer, database, jobs).await?;
    let enqueued = (database.wal().await? - made) as f64 / jobs as f64;
    database.settle().await?;
    let before = Costs::told(database, url, TOLD).await?;
    // Killing a separate process stops its polling, and its sessions report at once.
    let began = Instant::now();
    let worker = Process::start(false).await?;
    let took = database.completed_elsewhere(jobs, RARELY).await? - began;
    worker.kill()?;
    let (ran, commits) = Costs::told(database, url, ENDED).await?.each(before, jobs);
    database.expect_completed(jobs).await?;
    Ok(Outcome::rate(jobs, took)
        .with("wal_enqueue", enqueued)
        .with("wal_run", ran)
        .with("wal_bytes", enqueued + ran)
        .with("commits", commits))
}

pub async fn steps<P: Peer>(
    peer: &Arc<P>,
    database: &mut Database,
    url: &str,
    n: u64,
    steps: u64,
    concurrency: u64,
) -> Result<Outcome> {
    let before = Costs::told(database, url, TOLD).await?;
    let outcome = workflows(peer, database, n, steps, concurrency).await?;
    let (wal, commits) = Costs::told(database, url, TOLD).await?.each(before, n * steps);
    Ok(outcome.with("wal_bytes", wal).with("commits", commits))
}
