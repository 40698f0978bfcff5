//! One run at a time: enqueue, claim, settle, with empty tables and with a million dead entries.

use crate::claimer::Claimer;
use crate::pg;
use crate::variant::{Variant, variant};
use crate::work::{Batch, enqueue, fill, settle};
use crate::{Res, emit};
use serde_json::json;
use sqlx::postgres::PgConnection;
use std::time::{Duration, Instant};

/// Arguments: comma-separated variants, runs that are settled before, pinned (0 or 1), seconds.
pub async fn run(args: &[String]) -> Res<()> {
    let [variants, dead, pinned, seconds] = args else {
        return Err("usage: latency VARIANT,… DEAD PINNED SECONDS".into());
    };
    for name in variants.split(',') {
        measure(variant(name)?, dead.parse()?, pinned == "1", seconds.parse()?).await?;
    }
    Ok(())
}

/// Enqueues, drains and settles `dead` runs, whose rows stay dead under a snapshot. Returns the
/// claimer that drained them, or a new one if the variant keeps no cursor.
pub async fn bury(connection: &mut PgConnection, variant: Variant, dead: usize) -> Res<Claimer> {
    fill(connection, &variant, dead, "j").await?;
    let mut claimer = Claimer::new(variant, 1, &[("q", "j")]);
    claimer.know(0, "q", "j");
    loop {
        // `drain` uses a cursor in every variant and never scans, so it finishes in time.
        let claimed = claimer.drain(connection, 1000).await?;
        settle(connection, &variant, &claimed).await?;
        if claimed.is_empty() && variant.remembers {
            return Ok(claimer);
        }
        if claimed.is_empty() {
            let mut claimer = Claimer::new(variant, 1, &[("q", "j")]);
            claimer.know(0, "q", "j");
            return Ok(claimer);
        }
    }
}

async fn measure(variant: Variant, dead: usize, pinned: bool, seconds: f64) -> Res<()> {
    let mut connection = pg::connect().await?;
    sqlx::raw_sql(variant.schema).execute(&mut connection).await?;
    let mut connection = pg::connect().await?;
    pg::quiet(&mut connection).await?;
    let pin = if pinned { Some(pg::pin().await?) } else { None };
    let mut claimer = bury(&mut connection, variant, dead).await?;
    if pinned {
        sqlx::raw_sql("checkpoint").execute(&mut connection).await?;
    } else {
        pg::quiet(&mut connection).await?;
    }
    let (mut claims, mut settles, mut empty) = (vec![], vec![], 0);
    let began = Instant::now();
    while began.elapsed().as_secs_f64() < seconds {
        enqueue(&mut connection, &variant, &Batch::of(1, "q", "j", 0)).await?;
        let t0 = Instant::now();
        let claimed = claimer.claim(&mut connection, 10).await?;
        let t1 = Instant::now();
        if claimed.is_empty() {
            empty += 1;
            continue;
        }
        settle(&mut connection, &variant, &claimed).await?;
        claims.push(t1 - t0);
        settles.push(t1.elapsed());
    }
    let (looks, deep) = claimer.looks();
    emit(
        &json!({"measure": "latency", "variant": variant.name, "dead": dead, "pinned": pinned, "runs": claims.len(), "empty": empty,
        "claim_us": quantiles(&mut claims), "settle_us": quantiles(&mut settles), "looks": looks,
        "last_deep_look_ms": deep.as_secs_f64() * 1e3}),
    );
    drop(pin);
    Ok(())
}

/// The median, the 99th and 99.9th percentiles, the mean and the maximum, in microseconds.
fn quantiles(times: &mut [Duration]) -> Option<[u128; 5]> {
    times.sort_unstable();
    let sum: Duration = times.iter().sum();
    let at = |share: usize| times.get(times.len() * share / 1000).map(Duration::as_micros);
    Some([
        at(500)?,
        at(990)?,
        at(999)?,
        sum.as_micros() / u128::try_from(times.len()).ok()?,
        times.last()?.as_micros(),
    ])
}
