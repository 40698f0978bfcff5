//! The cost of locking the fence in a checkpoint, and whether a reclaim waits for a checkpoint in
//! flight.

use crate::cycle::rate;
use crate::pg::{self, Meter};
use crate::variant::{Variant, variant};
use crate::work::{INPUT, settle_owned};
use crate::{Res, emit};
use serde_json::json;
use sqlx::postgres::PgConnection;
use std::time::{Duration, Instant};
use uuid::Uuid;

const STEPS: i64 = 10;

/// Arguments: comma-separated variants, rows per statement, connections, seconds, rounds.
pub async fn run(args: &[String]) -> Res<()> {
    let [variants, batch, connections, seconds, rounds] = args else {
        return Err("usage: fence VARIANT,… BATCH CONNECTIONS SECONDS ROUNDS".into());
    };
    for round in 0..rounds.parse::<u32>()? {
        for name in variants.split(',') {
            let variant = variant(name)?;
            let mut connection = pg::connect().await?;
            sqlx::raw_sql(variant.schema).execute(&mut connection).await?;
            let waits = reclaim_waits(&variant).await?;
            pg::quiet(&mut connection).await?;
            let start = Meter::read(&mut connection).await?;
            let (mut steps, mut spent) = (0, Duration::ZERO);
            let (batch, seconds) = (batch.parse()?, seconds.parse()?);
            let tasks =
                (0..connections.parse::<usize>()?).map(|_| tokio::spawn(workflows(variant, batch, seconds)));
            for task in tasks.collect::<Vec<_>>() {
                let (done, took) = task.await??;
                steps += done;
                spent += took;
            }
            let cost = Meter::read(&mut connection).await?.since(start, steps);
            emit(
                &json!({"measure": "fence", "variant": variant.name, "batch": batch, "connections": connections, "round": round,
                "steps_per_s": rate(steps, seconds), "us_per_statement": spent.as_secs_f64() * 1e6 / rate(steps / batch, 1.0),
                "wal_per_step": cost.wal.round(), "reclaim_waits_for_checkpoint": waits}),
            );
        }
    }
    Ok(())
}

/// Leases 50 runs, records ten steps of each and settles them, repeatedly. Returns the number of
/// steps and the time spent in checkpoints.
async fn workflows(variant: Variant, batch: usize, seconds: f64) -> Res<(usize, Duration)> {
    let mut connection = pg::connect().await?;
    let (mut steps, mut spent, began) = (0, Duration::ZERO, Instant::now());
    while began.elapsed().as_secs_f64() < seconds {
        let runs: Vec<Uuid> = (0..50).map(|_| Uuid::now_v7()).collect();
        let token = Uuid::now_v7();
        lease(&mut connection, &runs, token).await?;
        for step in 0..STEPS {
            for some in runs.chunks(batch) {
                let t0 = Instant::now();
                let recorded = checkpoint(&mut connection, &variant, some, token, step).await?;
                spent += t0.elapsed();
                assert_eq!(recorded, some.len(), "every checkpoint of an owner is recorded");
                steps += recorded;
            }
        }
        assert_eq!(
            settle_owned(&mut connection, &variant, &runs, &vec![token; runs.len()]).await?,
            runs.len(),
            "every owner settles"
        );
    }
    Ok((steps, spent))
}

async fn lease(connection: &mut PgConnection, runs: &[Uuid], token: Uuid) -> Res<()> {
    sqlx::query("insert into hp.lease select unnest($1::uuid[]), $2, 1, 1::int2, 0::int2, now()")
        .bind(runs)
        .bind(token)
        .execute(connection)
        .await?;
    Ok(())
}

async fn checkpoint(
    connection: &mut PgConnection,
    variant: &Variant,
    runs: &[Uuid],
    token: Uuid,
    step: i64,
) -> Res<usize> {
    let recorded = sqlx::query(variant.checkpoint)
        .bind(runs)
        .bind(vec![token; runs.len()])
        .bind(vec![format!("step#{step}"); runs.len()])
        .bind(vec![INPUT; runs.len()])
        .bind(vec![step; runs.len()])
        .fetch_all(connection)
        .await?;
    Ok(recorded.len())
}

/// Whether deleting a lease waits for an uncommitted checkpoint under it.
async fn reclaim_waits(variant: &Variant) -> Res<bool> {
    let (mut owner, mut reaper) = (pg::connect().await?, pg::connect().await?);
    let (run, token) = (Uuid::now_v7(), Uuid::now_v7());
    lease(&mut owner, &[run], token).await?;
    sqlx::raw_sql("begin").execute(&mut owner).await?;
    checkpoint(&mut owner, variant, &[run], token, 0).await?;
    sqlx::raw_sql("set lock_timeout = '100ms'").execute(&mut reaper).await?;
    let reclaimed =
        sqlx::query("delete from hp.lease where run_id = $1").bind(run).execute(&mut reaper).await;
    sqlx::raw_sql("commit").execute(&mut owner).await?;
    Ok(reclaimed.is_err())
}
