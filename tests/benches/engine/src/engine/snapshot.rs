//! A transaction that stays open, so that no dead row can be removed: a forgotten `psql`, or a long report.

use std::sync::Arc;
use std::time::{Duration, Instant};

use runledger::prelude::*;
use runledger::{Db, enqueue_all};

use super::drain::{Tally, no_op};
use super::{WHO, client, ended};
use crate::Res;
use crate::arguments::Arguments;
use crate::line::Line;
use crate::work::{NOTE, connect, execute, now, number};

/// The load between the two measurements comes in so many parts a second.
const PARTS: usize = 10;

/// Drains `--jobs` before the snapshot is taken, and again after it was held for `--seconds` under a load of `--rate` a second; each of
/// `--windows` drains is taken, and the median counts.
pub async fn measure(url: &str, arguments: &Arguments) -> Res<Line> {
    let (seconds, rate) = (arguments.get("seconds", 60), arguments.count("rate", 2000));
    let (jobs, windows) = (arguments.count("jobs", 50_000), arguments.count("windows", 3));
    let concurrency = arguments.count("concurrency", 512);
    let db = client(url, 10).await?;
    let before = drains(url, &db, jobs, windows, concurrency).await?;
    let mut pinned = connect(url).await?;
    execute(&mut pinned, "begin isolation level repeatable read").await?;
    number(&mut pinned, "select count(*) from runledger.run").await?;
    let began = Instant::now();
    let loaded = load(&db, rate, Duration::from_secs(seconds), concurrency).await?;
    let after = drains(url, &db, jobs, windows, concurrency).await?;
    let took = began.elapsed();
    let outside = number(&mut connect(url).await?, "select count(*) from runledger.outcome").await?;
    let inside = number(&mut pinned, "select count(*) from runledger.outcome").await?;
    if usize::try_from(outside - inside)? != loaded + jobs * windows {
        return Err(format!("{} runs ended while the snapshot was held", outside - inside).into());
    }
    #[expect(clippy::cast_precision_loss, reason = "counts of a benchmark are far below 2^52")]
    let loaded = loaded as f64;
    Ok(Line::named(WHO, "snapshot", arguments, jobs * windows, took)
        .with("before", before)
        .with("after", after)
        .with("kept", after / before)
        .with("loaded", loaded)
        .noting("jobs a second drained before, and after so long under load with the snapshot held"))
}

/// Jobs a second: the median of some drains.
async fn drains(url: &str, db: &Db, jobs: usize, windows: usize, concurrency: usize) -> Res<f64> {
    let mut connection = connect(url).await?;
    let mut rates = Vec::new();
    for _ in 0..windows {
        for first in (0..jobs).step_by(1000) {
            enqueue_all((first..(first + 1000).min(jobs)).map(|n| no_op(n as u64, NOTE)), db).await?;
        }
        let tally = Tally::of(jobs);
        let since = now(&mut connection).await?;
        let app = App::new(db.clone()).with(jobs![no_op]).provide(Arc::clone(&tally));
        let worker = app.concurrency(concurrency).start().await?;
        tally.all().await;
        worker.stop().await;
        let took = ended::nth(&mut connection, "no_op", &since, jobs).await?;
        #[expect(clippy::cast_precision_loss, reason = "counts of a benchmark are far below 2^52")]
        let rate = jobs as f64 / took.as_secs_f64();
        rates.push(rate);
    }
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().ok_or_else(|| "`--windows` is at least 1".into())
}

/// Enqueues and runs so many a second; gives how many.
async fn load(db: &Db, rate: usize, length: Duration, concurrency: usize) -> Res<usize> {
    let n_parts = usize::try_from(length.as_secs())? * PARTS;
    let part = rate / PARTS;
    let jobs = n_parts * part;
    if jobs == 0 {
        return Ok(0);
    }
    let tally = Tally::of(jobs);
    let app = App::new(db.clone()).with(jobs![no_op]).provide(Arc::clone(&tally));
    let worker = app.concurrency(concurrency).start().await?;
    let mut tick = tokio::time::interval(Duration::from_secs(1) / u32::try_from(PARTS)?);
    for _ in 0..n_parts {
        tick.tick().await;
        enqueue_all((0..part).map(|n| no_op(n as u64, NOTE)), db).await?;
    }
    tally.all().await;
    worker.stop().await;
    Ok(jobs)
}
