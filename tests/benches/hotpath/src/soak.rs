//! Everything at once: late commits, priorities, delays, retries and several claimers. No run is
//! lost or settled twice.

use crate::claimer::Claimer;
use crate::cycle::rate;
use crate::pg;
use crate::variant::{RETRY, Variant, variant};
use crate::work::{Batch, enqueue, settle};
use crate::{Res, emit};
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use uuid::Uuid;

const JOBS: [&str; 3] = ["a", "b", "c"];

/// Arguments: variant, claimers, runs, pinned (0 or 1).
pub async fn run(args: &[String]) -> Res<()> {
    let [name, claimers, total, pinned] = args else {
        return Err("usage: soak VARIANT CLAIMERS RUNS PINNED".into());
    };
    let (variant, total) = (variant(name)?, total.parse::<usize>()?);
    let mut connection = pg::connect().await?;
    sqlx::raw_sql(variant.schema).execute(&mut connection).await?;
    let pin = if pinned == "1" { Some(pg::pin().await?) } else { None };
    let done = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let workers: Vec<_> = (0..claimers.parse()?)
        .map(|worker| tokio::spawn(work(variant, worker, done.clone(), total)))
        .collect();
    let producers: Vec<_> = (0..4).map(|at| tokio::spawn(produce(variant, at, total / 4))).collect();
    for producer in producers {
        producer.await??;
    }
    let produced = began.elapsed();
    let (mut attempts, mut deep) = (HashMap::<Uuid, Vec<i16>>::new(), 0);
    for worker in workers {
        let (mine, looks) = worker.await??;
        deep += looks;
        for (run, attempt) in mine {
            attempts.entry(run).or_default().push(attempt);
        }
    }
    let twice = attempts
        .values_mut()
        .filter_map(|seen| {
            seen.sort_unstable();
            (!seen.is_sorted_by(|a, b| a < b)).then_some(())
        })
        .count();
    let (left, outcomes): (i64, i64) =
        sqlx::query_as("select (select count(*) from hp.ready) + (select count(*) from hp.lease), (select count(*) from hp.outcome)")
            .fetch_one(&mut connection)
            .await?;
    emit(
        &json!({"measure": "soak", "variant": variant.name, "claimers": claimers, "runs": total, "pinned": pinned, "settled": outcomes,
        "left": left, "claimed_twice": twice, "retried": attempts.values().filter(|seen| seen.len() > 1).count(),
        "produced_ms": produced.as_millis(), "all_done_ms": began.elapsed().as_millis(), "deep_looks": deep,
        "jobs_per_s": rate(total, began.elapsed().as_secs_f64())}),
    );
    drop(pin);
    Ok(())
}

/// Enqueues batches of 1 to 50. Every tenth transaction stays open for up to 300 ms after its
/// insert.
async fn produce(variant: Variant, at: usize, total: usize) -> Res<()> {
    let mut connection = pg::connect().await?;
    let (mut made, mut turn) = (0, at);
    while made < total {
        let count = (1 + turn * 7 % 50).min(total - made);
        let mut batch = Batch::default();
        for each in 0..count {
            let delay = if each % 9 == 0 { 0.05 } else { 0.0 };
            let priority = i16::try_from((turn + each) % 4)?;
            batch.push(Uuid::now_v7(), "q", JOBS[(turn + each) % 3], priority, delay);
        }
        sqlx::raw_sql("begin").execute(&mut connection).await?;
        enqueue(&mut connection, &variant, &batch).await?;
        if turn % 10 == 0 {
            tokio::time::sleep(Duration::from_millis((turn as u64 * 13) % 300)).await;
        }
        sqlx::raw_sql("commit").execute(&mut connection).await?;
        made += count;
        turn += 1;
    }
    Ok(())
}

type Done = (Vec<(Uuid, i16)>, u32);

/// Settles its claimed runs, but first retries about 2 % of them once, alternately at once and
/// after 200 ms.
async fn work(variant: Variant, worker: i32, done: Arc<AtomicUsize>, total: usize) -> Res<Done> {
    let mut connection = pg::connect().await?;
    let mut claimer = Claimer::new(variant, worker, &JOBS.map(|job| ("q", job)));
    let (mut mine, began) = (vec![], Instant::now());
    while done.load(Ordering::Relaxed) < total && began.elapsed() < Duration::from_secs(120) {
        let claimed = claimer.claim(&mut connection, 100).await?;
        if claimed.is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
            continue;
        }
        mine.extend(claimed.iter().map(|run| (run.run_id, run.attempt)));
        let (again, over): (Vec<_>, Vec<_>) = claimed
            .into_iter()
            .partition(|run| run.attempt == 1 && run.run_id.as_bytes()[15].is_multiple_of(50));
        assert_eq!(settle(&mut connection, &variant, &over).await?, over.len(), "an owner settles");
        done.fetch_add(over.len(), Ordering::Relaxed);
        let (ids, tokens): (Vec<_>, Vec<_>) = again.iter().map(|run| (run.run_id, run.token)).unzip();
        let delays: Vec<f64> = (0..ids.len()).map(|at| if at % 2 == 0 { 0.0 } else { 0.2 }).collect();
        let back = sqlx::query(RETRY).bind(&ids).bind(tokens).bind(delays).fetch_all(&mut connection).await?;
        assert_eq!(back.len(), ids.len(), "an owner retries");
    }
    Ok((mine, claimer.looks().0[2]))
}
