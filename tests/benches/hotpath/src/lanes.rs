//! Many lanes: the cost of a claim, runs that arrive behind a backlog, and runs that no worker
//! serves.

use crate::claimer::Claimer;
use crate::pg;
use crate::variant::{Variant, variant};
use crate::work::{Batch, enqueue, fill, settle};
use crate::{Res, emit};
use serde_json::json;
use sqlx::postgres::PgConnection;
use std::time::{Duration, Instant};

const CLAIMS: usize = 200;

/// Arguments: comma-separated variants, comma-separated numbers of lanes, number of unserved runs.
pub async fn cost(args: &[String]) -> Res<()> {
    let [variants, lanes, unserved] = args else {
        return Err("usage: lanes VARIANT,… LANES,… UNSERVED".into());
    };
    for lanes in lanes.split(',') {
        for (name, spread) in variants.split(',').flat_map(|name| [(name, true), (name, false)]) {
            measure(variant(name)?, lanes.parse()?, spread, unserved.parse()?).await?;
        }
    }
    Ok(())
}

/// Spreads the runs over all lanes, or puts all in the last lane behind empty lanes. Ten jobs, with
/// descending priorities.
async fn measure(variant: Variant, lanes: usize, spread: bool, unserved: usize) -> Res<()> {
    let mut connection = fresh(&variant).await?;
    let jobs: Vec<String> = (0..10).map(|job| format!("job-{job}")).collect();
    let lane = |at: usize| (jobs[at % 10].as_str(), -i16::try_from(at / 10).unwrap_or(0));
    let served: Vec<_> = jobs.iter().take(lanes).map(|job| ("q", job.as_str())).collect();
    let mut claimer = Claimer::new(variant, 1, &served);
    for start in 0..40 {
        let mut batch = Batch::default();
        for at in 0..1000 {
            let (job, priority) = lane(if spread { (start + at) % lanes } else { lanes - 1 });
            batch.push(uuid::Uuid::now_v7(), "q", job, priority, 0.0);
        }
        enqueue(&mut connection, &variant, &batch).await?;
    }
    fill(&mut connection, &variant, unserved, "nobody-serves-this").await?;
    pg::quiet(&mut connection).await?;
    for at in 0..lanes {
        let (job, priority) = lane(at);
        claimer.know(priority, "q", job);
    }
    let (mut taken, mut full) = (Duration::ZERO, 0);
    for _ in 0..CLAIMS {
        let began = Instant::now();
        let claimed = claimer.drain(&mut connection, 100).await?;
        taken += began.elapsed();
        full += claimed.len();
        settle(&mut connection, &variant, &claimed).await?;
    }
    let mut idle = Duration::ZERO;
    let mut nobody = Claimer::new(variant, 2, &served);
    for at in 0..lanes {
        nobody.know(100 + i16::try_from(at)?, "q", "job-0");
    }
    for _ in 0..CLAIMS {
        let began = Instant::now();
        nobody.take(&mut connection, 100, 0).await?;
        idle += began.elapsed();
    }
    let began = Instant::now();
    claimer.discover(&mut connection).await?;
    emit(
        &json!({"measure": "lanes", "variant": variant.name, "lanes": lanes, "runs_in": if spread { "all lanes" } else { "the last lane" },
        "unserved": unserved, "us_per_claim_of_100": micros(taken), "claimed": full, "us_per_empty_claim": micros(idle),
        "us_discovery": began.elapsed().as_micros()}),
    );
    Ok(())
}

/// Arguments: variant, backlog, pinned (0 or 1). Measures urgent, delayed and late runs that arrive
/// behind a backlog.
pub async fn arrivals(args: &[String]) -> Res<()> {
    let [name, backlog, pinned] = args else {
        return Err("usage: arrivals VARIANT BACKLOG PINNED".into());
    };
    let variant = variant(name)?;
    let mut connection = fresh(&variant).await?;
    fill(&mut connection, &variant, backlog.parse()?, "j").await?;
    pg::quiet(&mut connection).await?;
    let pin = if pinned == "1" { Some(pg::pin().await?) } else { None };
    let mut claimer = Claimer::new(variant, 1, &[("q", "j")]);
    for _ in 0..backlog.parse::<usize>()? / 200 {
        round(&mut connection, &mut claimer, &variant, 100).await?;
    }
    for known in [false, true] {
        let batch = Batch::of(1, "q", "j", 9);
        let (claims, waited) = until(&mut connection, &mut claimer, &variant, &batch).await?;
        emit(
            &json!({"measure": "urgent", "backlog": backlog, "pinned": pinned, "lane_known": known, "claims_until_found": claims,
            "ms": waited.as_secs_f64() * 1e3}),
        );
    }
    let mut batch = Batch::default();
    for at in 0..20u32 {
        batch.push(uuid::Uuid::now_v7(), "q", "j", 8, 0.1 + f64::from(at) / 50.0);
    }
    let (_, waited) = until(&mut connection, &mut claimer, &variant, &batch).await?;
    emit(
        &json!({"measure": "delayed", "backlog": backlog, "pinned": pinned, "last_due_ms": 480, "last_claimed_ms": waited.as_secs_f64() * 1e3}),
    );
    late(&mut connection, &mut claimer, &variant).await?;
    drop(pin);
    Ok(())
}

/// Inserts 10,000 runs in a transaction that commits after two seconds of other work.
async fn late(connection: &mut PgConnection, claimer: &mut Claimer, variant: &Variant) -> Res<()> {
    let mut other = pg::connect().await?;
    sqlx::raw_sql("begin").execute(&mut other).await?;
    let batch = Batch::of(10_000, "q", "j", 0);
    enqueue(&mut other, variant, &batch).await?;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        enqueue(connection, variant, &Batch::of(100, "q", "j", 1)).await?;
        round(connection, claimer, variant, 100).await?;
        enqueue(connection, variant, &Batch::of(100, "q", "j", 0)).await?;
        round(connection, claimer, variant, 1000).await?;
    }
    while round(connection, claimer, variant, 1000).await? > 0 {}
    sqlx::raw_sql("commit").execute(&mut other).await?;
    let (mut found, mut first) = (0, None);
    let began = Instant::now();
    while found < batch.ids.len() && began.elapsed() < Duration::from_secs(60) {
        found += round(connection, claimer, variant, 100).await?;
        if found > 0 {
            first.get_or_insert(began.elapsed());
        }
    }
    let (looks, deep) = claimer.looks();
    emit(
        &json!({"measure": "late", "runs": batch.ids.len(), "found": found, "first_ms": first.map(|at| at.as_secs_f64() * 1e3),
        "all_ms": began.elapsed().as_secs_f64() * 1e3, "looks": looks, "last_deep_look_ms": deep.as_secs_f64() * 1e3}),
    );
    Ok(())
}

/// Enqueues a batch and works until all of it is claimed, for at most 60 s. Returns the number of
/// claims and the duration.
async fn until(
    connection: &mut PgConnection,
    claimer: &mut Claimer,
    variant: &Variant,
    batch: &Batch,
) -> Res<(u32, Duration)> {
    enqueue(connection, variant, batch).await?;
    let (mut claims, mut missing, began) = (0, batch.ids.len(), Instant::now());
    while missing > 0 && began.elapsed() < Duration::from_secs(60) {
        let claimed = claimer.claim(connection, 100).await?;
        claims += 1;
        missing -= claimed.iter().filter(|run| batch.ids.contains(&run.run_id)).count();
        settle(connection, variant, &claimed).await?;
    }
    Ok((claims, began.elapsed()))
}

async fn round(
    connection: &mut PgConnection,
    claimer: &mut Claimer,
    variant: &Variant,
    limit: i64,
) -> Res<usize> {
    let claimed = claimer.claim(connection, limit).await?;
    settle(connection, variant, &claimed).await
}

async fn fresh(variant: &Variant) -> Res<PgConnection> {
    let mut connection = pg::connect().await?;
    sqlx::raw_sql(variant.schema).execute(&mut connection).await?;
    pg::connect().await
}

fn micros(total: Duration) -> u128 {
    total.as_micros() / CLAIMS as u128
}
