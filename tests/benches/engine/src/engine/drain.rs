//! Drains no-op jobs that were enqueued before. History is stored and every write is fenced.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use runledger::enqueue_all;
use runledger::prelude::*;
use tokio::sync::Notify;

use super::{WHO, client};
use crate::Res;
use crate::arguments::Arguments;
use crate::line::Line;
use crate::work::{Costs, NOTE, connect, execute, until};

/// Counts bodies and notifies when the last one has run.
#[derive(Debug)]
pub struct Tally {
    left: AtomicUsize,
    all: Notify,
}

impl Tally {
    pub fn of(n: usize) -> Arc<Self> {
        Arc::new(Self { left: AtomicUsize::new(n), all: Notify::new() })
    }

    pub fn count(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.all.notify_one();
        }
    }

    /// Waits until all bodies have run.
    pub async fn all(&self) {
        self.all.notified().await;
    }
}

#[job]
pub async fn no_op(user_id: u64, note: &str, #[inject] tally: &Arc<Tally>) -> Result<()> {
    let _ = (user_id, note);
    tally.count();
    Ok(())
}

/// Measures from the start of one worker until the database shows every job as completed.
pub async fn measure(url: &str, figure: &str, arguments: &Arguments) -> Res<Line> {
    let (jobs, concurrency) = (arguments.count("jobs", 100_000), arguments.count("concurrency", 1024));
    let db = client(url, 10).await?;
    let made = Costs::of(url).await?;
    for first in (0..jobs).step_by(1000) {
        enqueue_all((first..(first + 1000).min(jobs)).map(|n| no_op(n as u64, NOTE)), &db).await?;
    }
    let enqueued = Costs::of(url).await?.wal_each(made, jobs);
    let mut connection = connect(url).await?;
    execute(&mut connection, "vacuum analyze").await?;
    let before = Costs::of(url).await?;
    let tally = Tally::of(jobs);
    let began = Instant::now();
    let worker = App::new(db.clone())
        .with(jobs![no_op])
        .provide(Arc::clone(&tally))
        .concurrency(concurrency)
        .start()
        .await?;
    tally.all().await;
    until(&mut connection, "select count(*) from runledger.outcome where state = 'completed'", jobs).await?;
    let took = began.elapsed();
    worker.stop().await;
    db.pool().close().await;
    let after = Costs::when_all_have_told(url, 1).await?;
    Ok(Line::rate(WHO, figure, arguments, jobs, took)
        .with("wal_enqueue", enqueued)
        .with("wal_run", after.wal_each(before, jobs))
        .with("wal_bytes", enqueued + after.wal_each(before, jobs))
        .with("commits", after.transactions_each(before, jobs)))
}
