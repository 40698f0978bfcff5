//! The time limits of the kit.

use std::time::Duration;

use runledger::ClientError;
use runledger::prelude::*;
use runledger::testing::{CrashError, Testing};

const DAY: Duration = Duration::from_secs(86_400);

/// Longer than the kit's own limit.
const LONG: Duration = Duration::from_secs(90);

#[workflow]
async fn nightly(wf: &Wf) -> Result<()> {
    loop {
        wf.sleep(DAY).await?;
    }
}

#[workflow]
async fn waits(wf: &Wf) -> Result<bool> {
    Ok(wf.signal("approval").await?)
}

#[workflow]
async fn naps(wf: &Wf, n: u32) -> Result<u32> {
    for _ in 0..n {
        wf.sleep(DAY).await?;
    }
    Ok(n)
}

#[job]
async fn nothing() -> Result<()> {
    Ok(())
}

#[job]
async fn slow() -> Result<()> {
    tokio::time::sleep(Duration::from_secs(6)).await;
    Ok(())
}

/// Repeats a short sleep forever, in real time.
#[workflow]
pub(crate) async fn ticks(wf: &Wf) -> Result<()> {
    loop {
        wf.sleep(Duration::from_millis(100)).await?;
    }
}

#[workflow]
async fn forgets(wf: &Wf) -> Result<()> {
    let _forgotten = wf.start(nothing()).await?;
    Ok(wf.start(slow()).await?.result().await?)
}

#[tokio::test]
async fn run_waiting_for_long_body_completes_beside_unserved_child() {
    let test = Testing::new().await.unwrap().with(jobs![forgets, slow]).stall_limit(Duration::from_secs(3));
    test.start(forgets()).await.unwrap().result().await.unwrap();
}

#[tokio::test]
async fn run_without_permit_is_reported_beside_progressing_run() {
    let test =
        Testing::new().await.unwrap().with(jobs![nothing, ticks]).stall_limit(Duration::from_millis(500));
    test.db().set_permits("gateway", 0).await.unwrap();
    test.start(ticks()).await.unwrap();
    let run = test.start(nothing().resource("gateway")).await.unwrap();
    let error = tokio::time::timeout(LONG, run.result()).await.expect("the kit gives up").unwrap_err();
    let said = error.to_string();
    assert!(said.contains("is queued") && said.contains("has a resource no permit left?"), "{said}");
}

#[job]
async fn hangs() -> Result<()> {
    std::future::pending().await
}

#[workflow]
async fn hangs_beside_a_child(wf: &Wf) -> Result<()> {
    let _goes_on = wf.start(ticks()).await?;
    Ok(wf.run(hangs()).await?)
}

#[tokio::test]
async fn crash_test_reports_hanging_body_beside_progressing_child() {
    let jobs = jobs![hangs_beside_a_child, hangs, ticks];
    let test = Testing::new().await.unwrap().with(jobs).stall_limit(Duration::from_millis(500));
    let crashes = test.crash_everywhere(hangs_beside_a_child()).into_future();
    let said = tokio::time::timeout(LONG, crashes).await.expect("the kit gives up").unwrap_err().to_string();
    assert!(said.contains("the run does not end: it is running"), "{said}");
}

#[tokio::test]
#[ignore = "slow: `cargo exhaustive`"]
async fn run_beside_endless_sleeper_is_reported_as_stuck() {
    let test = Testing::new().await.unwrap().with(jobs![nightly, waits]).auto_advance_time();
    let test = test.stall_limit(Duration::from_secs(3));
    let _endless = test.start(nightly()).await.unwrap();
    let waits = test.start(waits()).await.unwrap();
    let error = tokio::time::timeout(LONG, waits.result()).await.expect("the kit gives up").unwrap_err();
    assert!(matches!(error, ClientError::Config(_)), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("1000 times") && said.contains("signal `approval` is waited for"), "{said}");
}

#[tokio::test]
#[ignore = "slow: `cargo exhaustive`"]
async fn run_that_sleeps_more_than_1000_times_completes() {
    let test = Testing::new().await.unwrap().with(jobs![naps]).auto_advance_time();
    assert_eq!(test.start(naps(1_500)).await.unwrap().result().await.unwrap(), 1_500);
}

#[tokio::test]
async fn crash_test_reports_stalled_run_with_stall_limit() {
    let test = Testing::new().await.unwrap().with(jobs![waits]).stall_limit(Duration::from_secs(5));
    let error = tokio::time::timeout(LONG, test.crash_everywhere(waits()).into_future());
    let error = error.await.expect("the kit keeps to the stall limit").unwrap_err();
    assert!(matches!(error, CrashError::WithoutFault { .. }), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("nothing has happened for 5s") && said.contains("signal `approval`"), "{said}");
}

#[tokio::test]
async fn crash_test_names_stall_limit_when_body_exceeds_it() {
    let test = Testing::new().await.unwrap().with(jobs![slow]).stall_limit(Duration::from_secs(1));
    let said = test.crash_everywhere(slow()).await.unwrap_err().to_string();
    assert!(
        said.contains("nothing has happened for 1s") && said.contains("`Testing::stall_limit`"),
        "{said}"
    );
}

#[tokio::test]
async fn crash_test_that_meets_no_fault_fails() {
    let test = Testing::new().await.unwrap().with(jobs![nothing]);
    let error = test.crash_everywhere(nothing()).at_most(0).await.unwrap_err();
    assert!(matches!(error, CrashError::NothingMet { .. }), "{error:?}");
    assert!(error.to_string().contains("`at_most(0)` leaves out"), "{error}");
}
