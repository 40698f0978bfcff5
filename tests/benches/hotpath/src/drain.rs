//! Several claimers, each with its own cursor, drain one backlog. No run may be lost or claimed
//! twice.

use crate::claimer::Claimer;
use crate::cycle::rate;
use crate::pg::{self, Meter};
use crate::variant::{Variant, variant};
use crate::work::{fill, settle};
use crate::{Res, emit};
use serde_json::json;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Arguments: comma-separated variants, comma-separated numbers of claimers, runs, pinned (0 or 1).
pub async fn run(args: &[String]) -> Res<()> {
    let [variants, claimers, total, pinned] = args else {
        return Err("usage: drain VARIANT,… CLAIMERS,… RUNS PINNED".into());
    };
    for claimers in claimers.split(',') {
        for name in variants.split(',') {
            measure(variant(name)?, claimers.parse()?, total.parse()?, pinned == "1").await?;
        }
    }
    Ok(())
}

async fn measure(variant: Variant, claimers: i32, total: usize, pinned: bool) -> Res<()> {
    let mut connection = pg::connect().await?;
    sqlx::raw_sql(variant.schema).execute(&mut connection).await?;
    let mut connection = pg::connect().await?;
    fill(&mut connection, &variant, total, "j").await?;
    pg::quiet(&mut connection).await?;
    let pin = if pinned { Some(pg::pin().await?) } else { None };
    let start = Meter::read(&mut connection).await?;
    let done = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let tasks: Vec<_> =
        (0..claimers).map(|worker| tokio::spawn(empty(variant, worker, done.clone(), total))).collect();
    let (mut seen, mut claims, mut nothing) = (HashSet::new(), 0, 0);
    for task in tasks {
        let (ids, tried, empty) = task.await??;
        claims += tried;
        nothing += empty;
        for id in ids {
            assert!(seen.insert(id), "run {id} was settled twice");
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let cost = Meter::read(&mut connection).await?.since(start, seen.len());
    emit(
        &json!({"measure": "drain", "variant": variant.name, "claimers": claimers, "runs": total, "pinned": pinned,
        "jobs_per_s": rate(seen.len(), seconds), "lost": total - seen.len(), "claims": claims, "empty_claims": nothing,
        "wal_per_job": cost.wal.round()}),
    );
    drop(pin);
    Ok(())
}

async fn empty(
    variant: Variant,
    worker: i32,
    done: Arc<AtomicUsize>,
    total: usize,
) -> Res<(Vec<Uuid>, usize, usize)> {
    let mut connection = pg::connect().await?;
    let mut claimer = Claimer::new(variant, worker, &[("q", "j")]);
    claimer.know(0, "q", "j");
    let (mut mine, mut claims, mut nothing) = (vec![], 0, 0);
    let began = Instant::now();
    while done.load(Ordering::Relaxed) < total && began.elapsed() < Duration::from_secs(120) {
        let claimed = claimer.claim(&mut connection, 100).await?;
        claims += 1;
        if claimed.is_empty() {
            nothing += 1;
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        }
        let ids: Vec<_> = claimed.iter().map(|run| run.run_id).collect();
        assert_eq!(settle(&mut connection, &variant, &claimed).await?, ids.len(), "a claimed run settles");
        done.fetch_add(ids.len(), Ordering::Relaxed);
        mine.extend(ids);
    }
    Ok((mine, claims, nothing))
}
