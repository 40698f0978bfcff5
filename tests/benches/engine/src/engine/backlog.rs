//! Draining while the tables also hold a long queue, a long history and jobs that no worker serves;
//! and one transaction that enqueues many jobs.

use std::sync::Arc;
use std::time::Duration;

use runledger::enqueue_all;
use runledger::prelude::*;
use tokio::sync::Notify;

use super::drain::{Tally, no_op};
use super::enqueue::nobody_serves;
use super::latency::{Pace, starts};
use super::{WHO, client, copies, ended};
use crate::Res;
use crate::arguments::Arguments;
use crate::line::{Line, percentile};
use crate::pace::Starts;
use crate::work::{NOTE, connect, execute, now, until};

const OTHER_QUEUE: &str = "other";

/// Drains `--jobs` of `--jobs` + `--queued` runs and times fresh jobs of a higher priority during
/// the drain. Then times fresh jobs of another queue, on a worker that serves only that queue.
pub async fn measure(url: &str, arguments: &Arguments) -> Res<Line> {
    let (jobs, queued) = (arguments.count("jobs", 50_000), arguments.count("queued", 20_000));
    let (finished, unknown) = (arguments.count("finished", 0), arguments.count("unknown", 0));
    let (concurrency, seconds) = (arguments.count("concurrency", 512), arguments.get("seconds", 3));
    let db = client(url, 10).await?;
    let mut connection = connect(url).await?;
    if finished > 0 {
        let worker = App::new(db.clone()).with(jobs![no_op]).provide(Tally::of(1)).start().await?;
        let done = no_op(0, NOTE).enqueue(&db).await?;
        done.result().await?;
        worker.stop().await;
        copies::make(&mut connection, done.id(), &["run", "outcome"], finished - 1).await?;
    }
    if unknown > 0 {
        let run = nobody_serves(0, NOTE).enqueue(&db).await?.id();
        copies::make(&mut connection, run, &["run", "ready"], unknown - 1).await?;
    }
    let run = no_op(0, NOTE).enqueue(&db).await?.id();
    copies::make(&mut connection, run, &["run", "ready"], jobs + queued - 1).await?;
    execute(&mut connection, "checkpoint").await?;

    let (tally, begun) = (Tally::of(jobs), Starts::default());
    let since = now(&mut connection).await?;
    let app = App::new(db.clone()).with(jobs![no_op, starts]).provide(Arc::clone(&tally));
    let worker = app.provide(begun.clone()).concurrency(concurrency).start().await?;
    let (drained, first) = (Notify::new(), Pace { priority: 10, ..Pace::default() });
    let (fresh, ()) = tokio::join!(first.keep(&db, &begun, drained.notified()), async {
        tally.all().await;
        drained.notify_one();
    });
    let urgent = fresh?;
    worker.stop().await;
    let took = ended::nth(&mut connection, "no_op", &since, jobs).await?;

    let begun = Starts::default();
    let app = App::new(client(url, 10).await?).with(jobs![starts]).provide(begun.clone());
    let worker = app.queues([OTHER_QUEUE]).start().await?;
    let other = Pace { queue: OTHER_QUEUE, ..Pace::default() };
    let mut other = other.keep(&db, &begun, tokio::time::sleep(Duration::from_secs(seconds))).await?;
    worker.stop().await;
    other.sort_unstable();
    let [p50, p99] = [50, 99].map(|share| percentile(&other, share).unwrap_or(f64::NAN));
    Ok(Line::rate(WHO, "backlog", arguments, jobs, took)
        .with_latency(urgent)
        .with("other_p50_ms", p50)
        .with("other_p99_ms", p99)
        .noting("latency: fresh jobs of a higher priority meanwhile, and of another queue afterwards"))
}

/// One transaction enqueues all jobs while a worker is idle.
pub async fn one_transaction(url: &str, arguments: &Arguments) -> Res<Line> {
    let (jobs, concurrency) = (arguments.count("jobs", 10_000), arguments.count("concurrency", 512));
    let db = client(url, 10).await?;
    let mut connection = connect(url).await?;
    let tally = Tally::of(jobs + 1);
    let app = App::new(db.clone()).with(jobs![no_op]).provide(Arc::clone(&tally));
    let worker = app.concurrency(concurrency).start().await?;
    no_op(0, NOTE).enqueue(&db).await?.result().await?;
    let mut tx = db.begin().await?;
    for first in (0..jobs).step_by(1000) {
        enqueue_all((first..(first + 1000).min(jobs)).map(|n| no_op(n as u64, NOTE)), &mut tx).await?;
    }
    let since = now(&mut connection).await?;
    tx.commit().await?;
    tally.all().await;
    until(&mut connection, "select count(*) from runledger.outcome", jobs + 1).await?;
    worker.stop().await;
    let took = ended::nth(&mut connection, "no_op", &since, jobs).await?;
    let began = "select (extract(epoch from min(started_at) - $1::timestamptz) * 1000)::float8 from runledger.outcome where started_at >= $1::timestamptz";
    let began: f64 = sqlx::query_scalar(began).bind(&since).fetch_one(&mut connection).await?;
    Ok(Line::rate(WHO, "one-transaction", arguments, jobs, took)
        .with("began_ms", began)
        .noting("from the commit on; the worker was idle"))
}
