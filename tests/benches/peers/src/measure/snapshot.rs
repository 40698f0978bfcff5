//! One worker runs all the time: before a snapshot, after holding it under load, and after its
//! release.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use sqlx::{Connection, PgConnection};
use tokio::{task::JoinHandle, time::interval};

use super::{listening, together};
use crate::{
    Result,
    body::{self, Payload},
    database::Database,
    figure::{Figure, Outcome},
    peer::Peer,
};

/// Batches per second of the load under the snapshot.
const PARTS: u64 = 10;

/// Measures the medians of the rounds before the snapshot, under it, and after it.
pub async fn snapshot<P: Peer>(
    peer: &Arc<P>,
    database: &mut Database,
    url: &str,
    figure: Figure,
) -> Result<Outcome> {
    let Figure::Snapshot { jobs, windows, rate, seconds, concurrency } = figure else {
        return Err("no snapshot".into());
    };
    let worker = listening(peer, database, concurrency).await?;
    let before = median(peer, database, jobs, windows, &worker).await?;
    let mut pinned = PgConnection::connect(url).await?;
    for statement in ["begin isolation level repeatable read", "select count(*) from pg_class"] {
        sqlx::query(statement).execute(&mut pinned).await?;
    }
    let (began, ran, part) = (Instant::now(), body::ran(), rate / PARTS);
    let mut tick = interval(Duration::from_secs(1) / u32::try_from(PARTS)?);
    for _ in 0..seconds * PARTS {
        tick.tick().await;
        match peer.enqueue_batch(Payload::batch(0..part)) {
            Some(enqueued) => enqueued.await?,
            None => return Err(format!("{} has no bulk enqueue", P::NAME).into()),
        }
    }
    let loaded = part * seconds * PARTS;
    database.finished(ran + loaded, &worker).await?;
    let after = median(peer, database, jobs, windows, &worker).await?;
    let took = began.elapsed();
    pinned.close().await?;
    sqlx::query("vacuum").execute(&mut PgConnection::connect(url).await?).await?;
    let released = median(peer, database, jobs, windows, &worker).await?;
    database.expect_completed(1 + loaded + 3 * jobs * windows).await?;
    Ok(Outcome::named(jobs * windows, took)
        .with("before", before)
        .with("after", after)
        .with("released", released)
        .with("kept", 2.0 * after / (before + released))
        .with("loaded", loaded as f64))
}

async fn median<P: Peer>(
    peer: &Arc<P>,
    database: &mut Database,
    jobs: u64,
    windows: u64,
    worker: &JoinHandle<Result<()>>,
) -> Result<f64> {
    let mut rates = Vec::new();
    for _ in 0..windows {
        rates.push(jobs as f64 / together(peer, database, jobs, worker).await?.as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().ok_or_else(|| "`--windows` is at least 1".into())
}
