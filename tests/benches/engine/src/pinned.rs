//! A transaction that stays open, so that no dead row can be removed: a forgotten `psql`, or a long report. What a contender drains before its
//! snapshot is taken, after it was held for a while under load, and after it was given up again: there are as many finished jobs then, and the machine is as
//! fast or slow as it has become.

use std::time::{Duration, Instant};

use crate::Res;
use crate::arguments::Arguments;
use crate::line::Line;
use crate::work::{connect, execute, number};

/// The load between the two measurements comes in so many parts a second.
const PARTS: usize = 10;

/// Who drains while the snapshot is held.
pub trait Contender {
    /// How many jobs have ended, in SQL.
    const ENDED: &'static str;

    /// Jobs a second of one round of `jobs` that are there at once.
    async fn round(&mut self, jobs: usize) -> Res<f64>;

    /// What must run for the load to be worked off.
    async fn begin_load(&mut self) -> Res<()>;

    /// Jobs that may run at once, one commit.
    async fn enqueue(&mut self, jobs: usize) -> Res<()>;

    /// Waits until all that was enqueued has ended.
    async fn end_load(&mut self) -> Res<()>;
}

/// What every contender is asked for.
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

    /// So many seconds after they are made, jobs fall due together: time for a slow machine to make them.
    pub fn ahead(self) -> u64 {
        4 + self.jobs as u64 / 15_000
    }

    /// The line of a contender: the median of some rounds before the snapshot is taken, of as many after it was held for `--seconds` under a load of `--rate` a
    /// second, and of as many after it was given up and the tables were vacuumed. What is kept is kept of the mean of the first and the last.
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

    /// Enqueues and runs so many a second; gives how many.
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

/// Jobs a second.
pub fn rate(jobs: usize, took: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts of a benchmark are far below 2^52")]
    let jobs = jobs as f64;
    jobs / took.as_secs_f64()
}
