//! Canaries: one run per second without work, which must complete soon despite the faults.

use std::time::{Duration, Instant};

use anyhow::Result;
use runledger::Db;
use runledger_tests::check::calls::Submission;
use runledger_tests::check::jobs::check_canary;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// How long a canary may take under faults: longer than any fault lasts.
const PATIENCE: Duration = Duration::from_secs(60);

/// A task that sends canaries until it is stopped.
#[derive(Debug)]
pub struct Canaries {
    stop: watch::Sender<bool>,
    task: JoinHandle<Sung>,
}

/// The results of all canaries.
#[derive(Debug, Default)]
pub struct Sung {
    /// The acknowledged canaries.
    pub asked: Vec<Submission>,
    /// How long each took, ascending.
    pub took: Vec<Duration>,
    /// Canaries that failed or took too long.
    pub violations: Vec<String>,
}

impl Canaries {
    /// Starts sending canaries.
    #[must_use]
    pub fn start(db: Db) -> Self {
        let (stop, stopped) = watch::channel(false);
        Self { stop, task: tokio::spawn(sing(db, stopped)) }
    }

    /// Stops sending, and waits for the canaries in flight.
    ///
    /// # Errors
    /// A task panicked.
    pub async fn end(self) -> Result<Sung> {
        let _ = self.stop.send(true);
        Ok(self.task.await?)
    }
}

async fn sing(db: Db, mut stopped: watch::Receiver<bool>) -> Sung {
    let mut under_way = JoinSet::new();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            biased;
            _ = stopped.changed() => break,
            _ = ticks.tick() => drop(under_way.spawn(one(db.clone()))),
        }
    }
    let mut sung = Sung::default();
    while let Some(joined) = under_way.join_next().await {
        let (asked, took) = joined.unwrap_or_else(|error| (None, Err(format!("a canary panicked: {error}"))));
        sung.asked.extend(asked);
        match took {
            Ok(took) => sung.took.push(took),
            Err(why) => sung.violations.push(why),
        }
    }
    sung.took.sort_unstable();
    sung
}

async fn one(db: Db) -> (Option<Submission>, Result<Duration, String>) {
    let began = Instant::now();
    let canary = match check_canary().enqueue(&db).await {
        Ok(canary) => canary,
        Err(error) => return (None, Err(format!("a canary could not be enqueued: {error}"))),
    };
    let ended = canary.result_within(PATIENCE).await;
    let took = ended.map(|()| began.elapsed()).map_err(|error| format!("a canary did not end: {error}"));
    (Some(Submission::acknowledged(canary.id())), took)
}
