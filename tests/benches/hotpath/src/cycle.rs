//! Enqueues 100, claims 100 and settles 100 runs in one process, beside a backlog and optionally
//! under an open snapshot.

use crate::claimer::Claimer;
use crate::latency::bury;
use crate::pg::{self, Meter};
use crate::variant::{Variant, variant};
use crate::work::{Batch, enqueue, fill, settle};
use crate::{Res, emit};
use serde_json::json;
use std::time::{Duration, Instant};

const BATCH: usize = 100;

/// Arguments: comma-separated variants, backlog, snapshot, seconds, rounds. The snapshot is `free`,
/// `pinned` or `misled`. `misled` is `pinned` with bad plans: the statements are planned on empty
/// tables, then again after an `analyze` of tables with only dead rows.
pub async fn run(args: &[String]) -> Res<()> {
    let [variants, backlog, snapshot, seconds, rounds] = args else {
        return Err("usage: cycle VARIANT,… BACKLOG free|pinned|misled SECONDS ROUNDS".into());
    };
    for round in 0..rounds.parse()? {
        for name in variants.split(',') {
            measure(variant(name)?, backlog.parse()?, snapshot, seconds.parse()?, round).await?;
        }
    }
    Ok(())
}

async fn measure(variant: Variant, backlog: usize, snapshot: &str, seconds: f64, round: u32) -> Res<()> {
    let mut connection = pg::connect().await?;
    sqlx::raw_sql(variant.schema).execute(&mut connection).await?;
    let mut connection = pg::connect().await?;
    if snapshot == "misled" {
        bury(&mut connection, variant, 0).await?;
    }
    fill(&mut connection, &variant, backlog, "j").await?;
    pg::quiet(&mut connection).await?;
    let pin = if snapshot == "free" { None } else { Some(pg::pin().await?) };
    let mut claimer = Claimer::new(variant, 1, &[("q", "j")]);
    claimer.know(0, "q", "j");
    if snapshot == "misled" {
        claimer = bury(&mut connection, variant, 50_000).await?;
        sqlx::raw_sql("analyze").execute(&mut connection).await?;
    }
    let start = Meter::read(&mut connection).await?;
    let began = Instant::now();
    let (mut done, mut at_third, mut thirds) = (0, 0, vec![]);
    let mut spent = [Duration::ZERO; 3];
    while began.elapsed().as_secs_f64() < seconds {
        let t0 = Instant::now();
        enqueue(&mut connection, &variant, &Batch::of(BATCH, "q", "j", 0)).await?;
        let t1 = Instant::now();
        let claimed = claimer.claim(&mut connection, 100).await?;
        let t2 = Instant::now();
        let settled = settle(&mut connection, &variant, &claimed).await?;
        assert_eq!(settled, claimed.len(), "every run that was claimed is settled once");
        for (total, part) in spent.iter_mut().zip([t1 - t0, t2 - t1, t2.elapsed()]) {
            *total += part;
        }
        done += settled;
        let third = seconds / 3.0;
        if began.elapsed().as_secs_f64() >= third * f64::from(u32::try_from(thirds.len())? + 1) {
            thirds.push(rate(done - at_third, third));
            at_third = done;
        }
    }
    let cost = Meter::read(&mut connection).await?.since(start, done);
    let (looks, deep) = claimer.looks();
    emit(
        &json!({"measure": "cycle", "variant": variant.name, "backlog": backlog, "snapshot": snapshot, "round": round,
        "jobs_per_s": rate(done, began.elapsed().as_secs_f64()), "by_third": thirds, "wal_per_job": cost.wal.round(),
        "dead_per_job": cost.dead, "us_per_job_enqueue_claim_settle": spent.map(|part| micros(part, done)),
        "looks": looks, "last_deep_look_ms": deep.as_secs_f64() * 1e3}),
    );
    drop(pin);
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "counts of a benchmark stay far below 2^52")]
pub fn rate(count: usize, seconds: f64) -> f64 {
    (count as f64 / seconds).round()
}

#[expect(clippy::cast_precision_loss, reason = "counts of a benchmark stay far below 2^52")]
fn micros(part: Duration, count: usize) -> f64 {
    (part.as_secs_f64() * 1e8 / count.max(1) as f64).round() / 100.0
}
