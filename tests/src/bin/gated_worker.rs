//! A worker process for tests that kill it: `gated_worker <name>`, on `DATABASE_URL`.
//!
//! The second step of its workflow waits until a table `gate` exists.

use std::time::Duration;

use runledger::prelude::*;

/// The interval between two polls for the gate.
const LOOK: Duration = Duration::from_millis(20);

#[job]
async fn gated_first(n: i64) -> Result<i64> {
    Ok(n * 10)
}

#[job]
async fn gated_second(n: i64, #[inject] db: &Db) -> Result<i64> {
    let gate = "select to_regclass('public.gate') is not null";
    while !sqlx::query_scalar(gate).fetch_one(db.pool()).await? {
        tokio::time::sleep(LOOK).await;
    }
    Ok(n + 1)
}

#[workflow]
async fn gated(wf: &Wf, n: i64) -> Result<i64> {
    let first = wf.run(gated_first(n)).await?;
    Ok(wf.run(gated_second(first)).await?)
}

#[tokio::main]
async fn main() -> Result<()> {
    let name = std::env::args().nth(1).unwrap_or_default();
    let db = Db::from_env().await?;
    let app = App::new(db.clone()).provide(db).name(name).concurrency(2);
    Ok(app.with(jobs![gated, gated_first, gated_second]).serve().await?)
}
