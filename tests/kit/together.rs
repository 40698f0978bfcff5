//! Several concurrent waits for results in one test.

use std::time::Duration;

use futures::future::join_all;
use runledger::prelude::*;
use runledger::testing::{TestRun, Testing};

const MINUTE: Duration = Duration::from_secs(60);

#[job]
async fn books(n: u64, #[inject] tx: &mut Tx) -> Result<u64> {
    sqlx::query("select 1").execute(&mut **tx).await?;
    Ok(n)
}

#[workflow]
async fn order(wf: &Wf, n: u64) -> Result<u64> {
    wf.sleep(60 * MINUTE).await?;
    Ok(wf.run(books(n)).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_results_leave_pool_connections_to_bodies() {
    let test = Testing::new().await.unwrap().with(jobs![order, books]).auto_advance_time();
    let test = test.stall_limit(Duration::from_secs(1));
    let mut runs = Vec::new();
    for n in 0..16 {
        runs.push(test.start(order(n)).await.unwrap());
    }
    let results = join_all(runs.iter().map(TestRun::result));
    let results = tokio::time::timeout(MINUTE, results).await.expect("the kit gives up or gives results");
    for result in results {
        result.unwrap();
    }
}

#[workflow]
async fn limited(wf: &Wf) -> Result<bool> {
    Ok(wf.signal::<bool>("go").timeout(90 * MINUTE).await?.is_some())
}

#[job]
async fn sends(to: String, #[inject] db: &Db) -> Result<()> {
    db.run(to.parse()?).signal("go", &true).idempotency_key("go").await?;
    Ok(())
}

#[workflow]
async fn sender(wf: &Wf, to: String) -> Result<()> {
    wf.sleep(60 * MINUTE).await?;
    wf.run(sends(to)).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_results_skip_time_once() {
    for _ in 0..12 {
        let test = Testing::new().await.unwrap().with(jobs![limited, sender, sends]);
        let test = test.provide_with(Clone::clone).auto_advance_time();
        let waits = test.start(limited()).await.unwrap();
        let sends = test.start(sender(waits.handle().id().to_string())).await.unwrap();
        let (got, _) = tokio::join!(waits.result(), sends.result());
        assert!(got.unwrap(), "the signal comes 30 minutes before the limit");
    }
}

#[workflow]
async fn takes(wf: &Wf, n: u32) -> Result<u32> {
    let _ = n;
    Ok(wf.signal::<u32>("go").await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_results_share_signal_script() {
    let test = Testing::new().await.unwrap().with(jobs![takes]).signals([("go", 1), ("go", 2), ("go", 3)]);
    let test = test.stall_limit(Duration::from_secs(2));
    let mut runs = Vec::new();
    for n in 0..3 {
        runs.push(test.start(takes(n)).await.unwrap());
    }
    let results = join_all(runs.iter().map(TestRun::result)).await;
    let mut taken: Vec<u32> = results.into_iter().map(Result::unwrap).collect();
    taken.sort_unstable();
    assert_eq!(taken, [1, 2, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn unpolled_result_delays_no_other_result() {
    for _ in 0..12 {
        let test =
            Testing::new().await.unwrap().with(jobs![takes, books]).stall_limit(Duration::from_secs(5));
        let kept = test.start(takes(1)).await.unwrap();
        let other = test.start(books(2)).await.unwrap();
        let mut waits = std::pin::pin!(kept.result());
        let polled = tokio::time::timeout(Duration::from_millis(30), &mut waits).await;
        assert!(polled.is_err(), "nobody sends the signal");
        let other =
            tokio::time::timeout(MINUTE, other.result()).await.expect("the first result is not polled");
        assert_eq!(other.unwrap(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unpolled_start_delays_no_other_start() {
    let test = Testing::new().await.unwrap().with(jobs![books]);
    let mut kept = std::pin::pin!(test.start(books(1)));
    assert!(futures::poll!(&mut kept).is_pending(), "the worker is not there yet");
    let other =
        tokio::time::timeout(MINUTE, test.start(books(2))).await.expect("the first start is not polled");
    assert_eq!(other.unwrap().result().await.unwrap(), 2);
    assert_eq!(kept.await.unwrap().result().await.unwrap(), 1);
}
