//! Skipped time.

use std::time::{Duration, SystemTime};

use runledger::prelude::*;
use runledger::testing::Testing;
use runledger::{ClientError, RunState};

const DAY: Duration = Duration::from_secs(86_400);

/// Returns how long each sleep took by the workflow's own clock, in seconds.
#[workflow]
async fn months(wf: &Wf, n: u32) -> Result<Vec<u64>> {
    let mut took = Vec::new();
    for _ in 0..n {
        let began = wf.now();
        wf.sleep(30 * DAY).await?;
        took.push(seconds(began, wf.now()));
    }
    Ok(took)
}

/// Returns the seconds that have passed by the workflow's own clock when it wakes.
#[workflow]
async fn until_a_day(wf: &Wf, days: u32) -> Result<u64> {
    let began = wf.now();
    wf.sleep_until(began + days * DAY).await?;
    let woke = wf.now();
    wf.sleep_until(began).await?;
    Ok(seconds(began, woke))
}

#[tokio::test]
async fn sleep_until_skipped_instant_ends_when_instant_is_reached() {
    let test = Testing::new().await.unwrap().with(jobs![until_a_day]).auto_advance_time();
    let run = test.start(until_a_day(90)).await.unwrap();
    assert!(is_about(run.result().await.unwrap(), 90 * DAY));
    let again = test.start(until_a_day(1)).await.unwrap().result().await.unwrap();
    assert!(is_about(again, DAY), "{again}: the time before it counts");
}

fn seconds(from: SystemTime, to: SystemTime) -> u64 {
    to.duration_since(from).unwrap_or_default().as_secs()
}

fn is_about(seconds: u64, wanted: Duration) -> bool {
    (wanted.as_secs()..wanted.as_secs() + 60).contains(&seconds)
}

#[tokio::test]
async fn month_long_sleeps_are_skipped_and_advance_workflow_clock() {
    let test = Testing::new().await.unwrap().with(jobs![months]).auto_advance_time();
    let took = test.start(months(5)).await.unwrap().result().await.unwrap();
    assert!(took.len() == 5 && took.iter().all(|took| is_about(*took, 30 * DAY)), "{took:?}");
}

#[tokio::test]
async fn time_advances_only_on_request_without_auto_advance() {
    let test = Testing::new().await.unwrap().with(jobs![months]);
    let run = test.start(months(1)).await.unwrap();
    run.wait_until_idle().await.unwrap();
    assert_eq!(run.handle().state().await.unwrap(), RunState::Queued, "it sleeps");
    let skipped = test.skip_time().await.unwrap();
    assert!(skipped > 29 * DAY && skipped <= 30 * DAY, "{skipped:?}");
    assert!(is_about(run.result().await.unwrap()[0], 30 * DAY));
    let error = test.skip_time().await.unwrap_err();
    assert!(error.to_string().starts_with("no run sleeps"), "{error}");
}

#[job]
async fn tick() -> Result<()> {
    Ok(())
}

/// Returns two sleeps in the order in which they end.
#[workflow]
async fn first(wf: &Wf, one: u32, other: u32) -> Result<Vec<u32>> {
    let mut order = std::sync::Mutex::new(Vec::new());
    let wait = async |days: u32| {
        wf.sleep(days * DAY).await?;
        order.lock().unwrap().push(days);
        wf.run(tick().key(days)).await.map_err(Error::from)
    };
    let (a, b) = tokio::join!(wait(one), wait(other));
    a?;
    b?;
    Ok(std::mem::take(order.get_mut().unwrap()))
}

#[tokio::test]
async fn concurrent_sleeps_of_run_end_in_order() {
    let test = Testing::new().await.unwrap().with(jobs![first, tick]).auto_advance_time();
    assert_eq!(test.start(first(9, 2)).await.unwrap().result().await.unwrap(), [2, 9]);
}

#[workflow]
async fn stamps(wf: &Wf) -> Result<SystemTime> {
    Ok(wf.now())
}

#[workflow]
async fn sleeper(wf: &Wf, days: u32) -> Result<SystemTime> {
    wf.sleep(days * DAY).await?;
    Ok(wf.now())
}

/// Time is ahead after a sleep. Delays of later runs count from their enqueue, so the distances to
/// the earlier runs remain.
#[workflow]
async fn later(wf: &Wf) -> Result<Vec<SystemTime>> {
    let ten = wf.start(sleeper(10)).await?;
    wf.sleep(4 * DAY).await?;
    let seven = wf.start(stamps().delay(3 * DAY)).await?;
    let five = wf.start(sleeper(1)).await?;
    Ok(vec![five.result().await?, seven.result().await?, ten.result().await?])
}

#[tokio::test]
async fn runs_wake_in_order_of_their_instants() {
    let test = Testing::new().await.unwrap().with(jobs![later, stamps, sleeper]).auto_advance_time();
    let began = SystemTime::now();
    let woke = test.start(later()).await.unwrap().result().await.unwrap();
    let days: Vec<u64> = woke.iter().map(|at| seconds(began, *at) / DAY.as_secs()).collect();
    assert_eq!(days, [5, 7, 10]);
}

#[workflow]
async fn gives_up(wf: &Wf) -> Result<bool> {
    Ok(wf.signal::<bool>("approval").timeout(3 * DAY).await?.is_some())
}

#[tokio::test]
async fn wait_times_out_only_without_signal() {
    let test = Testing::new().await.unwrap().with(jobs![gives_up]).auto_advance_time();
    assert!(!test.start(gives_up()).await.unwrap().result().await.unwrap());
    let test =
        Testing::new().await.unwrap().with(jobs![gives_up]).auto_advance_time().signals([("approval", true)]);
    assert!(test.start(gives_up()).await.unwrap().result().await.unwrap());
}

#[job(max_attempts = 3, backoff = "1d..2d")]
async fn never() -> Result<()> {
    Err("not today")?
}

#[tokio::test]
async fn retry_backoff_and_delays_are_skipped() {
    let test = Testing::new().await.unwrap().with(jobs![never]).auto_advance_time();
    let run = test.start(never().delay(90 * DAY)).await.unwrap();
    assert!(matches!(run.result().await, Err(ClientError::RunFailed { .. })));
    assert_eq!(test.calls(never), 3);
}

#[workflow]
async fn waits_a_month_for_a_signal(wf: &Wf) -> Result<u64> {
    Ok(wf.signal("never").await?)
}

#[tokio::test]
async fn deadline_reached_by_time_skip_waits_for_run_lock() {
    let test = Testing::new().await.unwrap().with(jobs![waits_a_month_for_a_signal]);
    let run = test.start(waits_a_month_for_a_signal().deadline(30 * DAY)).await.unwrap();
    run.wait_until_idle().await.unwrap();
    let mut tx = test.db().pool().begin().await.unwrap();
    sqlx::query("select run_id from runledger.run for update").execute(&mut *tx).await.unwrap();
    let unlock = async {
        let waiting = "select count(*) from pg_stat_activity
                       where datname = current_database() and wait_event_type = 'Lock' and query like '-- lock_runs%'";
        let n_waiting =
            async || sqlx::query_scalar::<_, i64>(waiting).fetch_one(test.db().pool()).await.unwrap();
        runledger_tests::eventually(n_waiting, |n| *n > 0).await;
        tx.rollback().await.unwrap();
    };
    let (skipped, ()) = tokio::join!(test.skip_time(), unlock);
    skipped.unwrap();
    assert_eq!(run.handle().state().await.unwrap(), RunState::Cancelled);
}
