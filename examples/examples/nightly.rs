//! A nightly job: a parent starts a child workflow per region, waits for all of them, and merges
//! their results. Cancelling the parent cancels its children.
//!
//! `cargo example nightly`
#![expect(clippy::print_stdout, reason = "the program's output is for the person who runs it")]

use std::time::Duration;

use runledger::prelude::*;

#[job]
async fn extract(region: &str, day: u32) -> Result<u64> {
    Ok(u64::from(day) * region.len() as u64)
}

/// Handles one region as a separate run, on any worker.
#[workflow]
async fn regional(wf: &Wf, region: String, day: u32) -> Result<u64> {
    let rows = wf.run(extract(&region, day)).await?;
    wf.sleep(Duration::from_secs(1)).await?; // suspends the run
    Ok(rows)
}

/// Handles one night. With its idempotency key, each day has one run, however often a caller
/// enqueues it.
#[workflow]
async fn nightly(wf: &Wf, day: u32, regions: Vec<String>) -> Result<u64> {
    let rows = wf.map(&regions, |region| regional(region.clone(), day).key(region)).as_child_runs().await?;
    Ok(rows.into_iter().sum())
}

#[tokio::main]
async fn main() -> Result<()> {
    if runledger_examples::helped(
        "usage: cargo example nightly\n\nA night's work: a parent starts a child workflow for each region, waits for all of them, and merges what they give. Cancelling the night cancels the regions that have not ended.",
    ) {
        return Ok(());
    }
    let db = Db::from_env().await?;
    let worker = App::new(db.clone()).start().await?;
    let regions: Vec<String> = ["eu", "asia", "africa"].map(str::to_owned).to_vec();

    let call = || nightly(20, regions.clone()).idempotency_key("day-20");
    let (night, again) = (call().enqueue(&db).await?, call().enqueue(&db).await?);
    println!("one night: {}", night.id() == again.id());
    println!("rows: {}", night.result().await?);
    let n_runs: i64 = sqlx::query_scalar("select count(*) from runledger.run where parent_id = $1")
        .bind(night.id())
        .fetch_one(db.pool())
        .await?;
    println!("regions: {n_runs}");

    let late = nightly(21, regions.clone()).enqueue(&db).await?;
    let started = "select count(*) from runledger.run where parent_id = $1";
    while sqlx::query_scalar::<_, i64>(started).bind(late.id()).fetch_one(db.pool()).await? < 3 {
        tokio::task::yield_now().await;
    }
    late.cancel("the day is over").await?;
    println!("cancelled: {:?}", late.result().await.map_err(Error::from).err());
    let going_on = "select count(*) from runledger.run_state where parent_id = $1 and finished_at is null";
    while sqlx::query_scalar::<_, i64>(going_on).bind(late.id()).fetch_one(db.pool()).await? > 0 {
        tokio::task::yield_now().await;
    }
    println!("and its regions with it");
    worker.stop().await;
    Ok(())
}

/// Runs the example with a crash at every write:
/// `cargo test -p runledger-examples --bin nightly -- --ignored`.
#[cfg(test)]
mod tests {
    use runledger::testing::Testing;

    use super::*;

    #[tokio::test]
    #[ignore = "slow: `cargo exhaustive`"]
    async fn nightly_run_starts_one_child_per_region_despite_crashes() -> Result<()> {
        let test = Testing::new().await?;
        let regions: Vec<String> = ["eu", "asia"].map(str::to_owned).to_vec();
        let crashes = test
            .crash_everywhere(nightly(20, regions))
            .invariant(|end| async move {
                assert_eq!(*end.result()?, 120);
                let n_runs = "select count(*) from runledger.run where parent_id = $1";
                let n_runs = sqlx::query_scalar::<_, i64>(n_runs).bind(end.run_id());
                assert_eq!(n_runs.fetch_one(end.db().pool()).await?, 2);
                Ok(())
            })
            .await?;
        assert!(crashes.n_crashes() > 10, "{crashes}");
        Ok(())
    }
}
