//! A transaction that stays open and keeps vacuum from removing dead rows, such as a forgotten
//! `psql` or a long report.
//!
//! Compares what a contender drains before the snapshot, after it was held under load, and after
//! its release. By then the machine may have become slower, and the tables hold as many finished
//! jobs as under the snapshot.

use std::time::{Duration, Instant};

use crate::Res;
use crate::arguments::Arguments;
use crate::line::Line;
use crate::work::{connect, execute, number};

/// Commits per second of the load between the measurements.
const PARTS: usize = 10;

/// A system that drains while the snapshot is held.
pub trait Contender {
    /// The SQL that counts ended jobs.
    const ENDED: &'static str;

    /// Drains `jobs` jobs, and returns the jobs per second.
    async fn round(&mut self, jobs: usize) -> Res<f64>;

    /// Starts what must run to drain the load.
    async fn begin_load(&mut self) -> Res<()>;

    /// Enqueues `jobs` due jobs in one commit.
    async fn enqueue(&mut self, jobs: usize) -> Res<()>;

    /// Waits until every enqueued job has ended.
    async fn end_load(&mut self) -> Res<()>;
}

#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub jobs: usize,
    windows: usize,
    rate: usize,
    seconds: u64,
}

impl Sizes {
    pub fn of(arguments: &Arguments) -> Self {
        Self {
            jobs: arguments.count("jobs", 30_000),
            windows: arguments.count("windows", 3),
            rate: arguments.count("rate", 2000),
            seconds: arguments.get("seconds", 60),
        }
    }

    /// Jobs fall due this many seconds after the measurement begins to create them: enough for a
    /// slow machine.
    pub fn ahead(self) -> u64 {
        4 + self.jobs as u64 / 15_000
    }

    /// Takes the median of `--windows` rounds three times: before the snapshot, after holding it
    /// for `--seconds` under `--rate` jobs per second, and after its release and a vacuum. `kept`
    /// is the second median divided by the mean of the other two.
    pub async fn measure<C: Contender>(
        self,
        who: &str,
        url: &str,
        arguments: &Arguments,
        contender: &mut C,
    ) -> Res<Line> {
        let before = self.median(contender).await?;
        let mut pinned = connect(url).await?;
        execute(&mut pinned, "begin isolation level repeatable read").await?;
        let inside = number(&mut pinned, C::ENDED).await?;
        let began = Instant::now();
        let loaded = self.load(contender).await?;
        let after = self.median(contender).await?;
        let took = began.elapsed();
        let outside = number(&mut connect(url).await?, C::ENDED).await?;
        if number(&mut pinned, C::ENDED).await? != inside {
            return Err("the snapshot was not held".into());
        }
        let (ended, rounds) = (usize::try_from(outside - inside)?, self.jobs * self.windows);
        if ended != loaded + rounds {
            return Err(format!("{ended} jobs ended while the snapshot was held").into());
        }
        execute(&mut pinned, "rollback").await?;
        execute(&mut connect(url).await?, "vacuum").await?;
        let released = self.median(contender).await?;
        #[expect(clippy::cast_precision_loss, reason = "counts of a benchmark are far below 2^52")]
        let loaded = loaded as f64;
        Ok(Line::named(who, "snapshot", arguments, rounds, took)
            .with("before", before)
            .with("after", after)
            .with("released", released)
            .with("kept", 2.0 * after / (before + released))
            .with("loaded", loaded))
    }

    async fn median<C: Contender>(self, contender: &mut C) -> Res<f64> {
        let mut rates = Vec::new();
        for _ in 0..self.windows {
            rates.push(contender.round(self.jobs).await?);
        }
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied().ok_or_else(|| "`--windows` is at least 1".into())
    }

    /// Enqueues the load at `--rate` jobs per second and waits until it has ended. Returns the
    /// number of jobs.
    async fn load<C: Contender>(self, contender: &mut C) -> Res<usize> {
        let (n_parts, part) = (usize::try_from(self.seconds)? * PARTS, self.rate / PARTS);
        contender.begin_load().await?;
        let mut tick = tokio::time::interval(Duration::from_secs(1) / u32::try_from(PARTS)?);
        for _ in 0..n_parts {
            tick.tick().await;
            contender.enqueue(part).await?;
        }
        contender.end_load().await?;
        Ok(n_parts * part)
    }
}

/// Jobs per second.
pub fn rate(jobs: usize, took: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts of a benchmark are far below 2^52")]
    let jobs = jobs as f64;
    jobs / took.as_secs_f64()
}
