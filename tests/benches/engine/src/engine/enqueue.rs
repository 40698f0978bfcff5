//! Enqueues one by one, in the caller's transaction, and in batches.

use std::time::Instant;

use runledger::enqueue_all;
use runledger::prelude::*;

use super::{WHO, client};
use crate::Res;
use crate::arguments::Arguments;
use crate::line::Line;
use crate::work::{NOTE, connect, execute, number, share};

#[job]
pub async fn nobody_serves(user_id: u64, note: &str) -> Result<()> {
    let _ = (user_id, note);
    Ok(())
}

const COUNT: &str = "select count(*) from runledger.run join runledger.ready using (run_id)";

/// Enqueues each call in its own transaction.
pub async fn single(url: &str, arguments: &Arguments) -> Res<Line> {
    let (jobs, clients) = (arguments.count("jobs", 20_000), arguments.count("clients", 32));
    let db = client(url, clients).await?;
    let took = share(clients, jobs, |_| {
        let db = db.clone();
        move |n| {
            let db = db.clone();
            async move { Ok(nobody_serves(n as u64, NOTE).enqueue(&db).await.map(drop)?) }
        }
    })
    .await?;
    check(url, jobs).await?;
    Ok(Line::rate(WHO, "enqueue", arguments, jobs, took))
}

/// Enqueues each call in a transaction that also inserts an application row.
pub async fn in_transaction(url: &str, arguments: &Arguments) -> Res<Line> {
    let (jobs, clients) = (arguments.count("jobs", 20_000), arguments.count("clients", 32));
    let db = client(url, clients).await?;
    execute(&mut connect(url).await?, "create table business (id bigint primary key)").await?;
    let took = share(clients, jobs, |_| {
        let db = db.clone();
        move |n| {
            let db = db.clone();
            async move {
                let mut tx = db.begin().await?;
                sqlx::query("insert into business values ($1)")
                    .bind(i64::try_from(n)?)
                    .execute(&mut *tx)
                    .await?;
                nobody_serves(n as u64, NOTE).enqueue(&mut tx).await?;
                Ok(tx.commit().await?)
            }
        }
    })
    .await?;
    check(url, jobs).await?;
    Ok(Line::rate(WHO, "enqueue-tx", arguments, jobs, took))
}

/// Enqueues batches from one client.
pub async fn bulk(url: &str, arguments: &Arguments) -> Res<Line> {
    let (jobs, batch) = (arguments.count("jobs", 100_000), arguments.count("batch", 1000));
    let db = client(url, 4).await?;
    let began = Instant::now();
    for first in (0..jobs).step_by(batch) {
        let calls = (first..(first + batch).min(jobs)).map(|n| nobody_serves(n as u64, NOTE));
        enqueue_all(calls, &db).await?;
    }
    let took = began.elapsed();
    check(url, jobs).await?;
    Ok(Line::rate(WHO, "bulk", arguments, jobs, took))
}

async fn check(url: &str, jobs: usize) -> Res<()> {
    let n = number(&mut connect(url).await?, COUNT).await?;
    if usize::try_from(n)? == jobs { Ok(()) } else { Err(format!("{n} of {jobs} jobs are queued").into()) }
}
