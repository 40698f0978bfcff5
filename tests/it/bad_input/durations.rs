//! Durations and failures that are too long.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use runledger::prelude::*;
use runledger::{ClientError, RunState};
use runledger_tests::Fixture;
use runledger_tests::rows::{soon, until};

use super::told;

const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

#[job(name = "bad_input.durations.plain")]
async fn plain() -> Result<()> {
    Ok(())
}

#[job(name = "bad_input.durations.later", max_attempts = 2)]
async fn later() -> Result<()> {
    Err(Error::retry_after("later", Duration::MAX))
}

#[job(name = "bad_input.durations.large_failure", max_attempts = 1)]
async fn large_failure() -> Result<()> {
    Err("x".repeat(20_000_000).into())
}

#[workflow(name = "bad_input.durations.long_sleep")]
async fn long_sleep(wf: &Wf, limitless: bool) -> Result<()> {
    wf.sleep(if limitless { Duration::MAX } else { YEAR * 99 }).await?;
    Ok(())
}

#[tokio::test]
async fn start_over_hundred_years_ahead_is_refused_naming_option() {
    let fixture = Fixture::new().await;
    let far = SystemTime::now() + YEAR * 101;
    let calls = [
        ("delay", plain().delay(Duration::MAX)),
        ("delay", plain().delay(YEAR * 101)),
        ("start_at", plain().start_at(far)),
    ];
    for (option, call) in calls {
        let refused = call.enqueue(&fixture.db).await.unwrap_err();
        assert!(matches!(refused, ClientError::TooFarAhead { .. }), "{refused:?}");
        assert!(told(&refused).contains(&format!("`{option}`")), "{}", told(&refused));
    }
    plain().delay(YEAR * 99).enqueue(&fixture.db).await.unwrap();
    let worker = runledger_tests::rows::worker(&fixture.db, jobs![plain]).await;
    for past in [UNIX_EPOCH, UNIX_EPOCH - YEAR * 5000] {
        let handle = plain().start_at(past).enqueue(&fixture.db).await.unwrap();
        soon(handle.result()).await.unwrap();
    }
    worker.stop().await;
}

#[tokio::test]
async fn endless_retry_delay_is_capped_and_endless_sleep_is_refused() {
    let fixture = Fixture::new().await;
    let worker = runledger_tests::rows::worker(&fixture.db, jobs![later, large_failure, long_sleep]).await;
    let later = later().enqueue(&fixture.db).await.unwrap();
    let failing = large_failure().max_attempts(2).backoff(Duration::MAX, Duration::MAX);
    let failing = failing.timeout(Duration::MAX).enqueue(&fixture.db).await.unwrap();
    let sleeping = long_sleep(false).enqueue(&fixture.db).await.unwrap();
    for run_id in [later.id(), failing.id(), sleeping.id()] {
        let run = until(&fixture.db, run_id, |run| run.ready_at > Some(SystemTime::now() + YEAR * 90)).await;
        assert_eq!(run.state, RunState::Queued);
    }
    let refused = soon(long_sleep(true).enqueue(&fixture.db).await.unwrap().result()).await.unwrap_err();
    assert!(told(&refused).contains("years is longer than the 100 that are allowed"), "{}", told(&refused));
    worker.stop().await;
}

#[tokio::test]
async fn enormous_error_message_is_truncated() {
    let fixture = Fixture::new().await;
    let worker = runledger_tests::rows::worker(&fixture.db, jobs![large_failure]).await;
    let handle = large_failure().enqueue(&fixture.db).await.unwrap();
    let Err(ClientError::RunFailed { failure, .. }) = soon(handle.result()).await else { panic!("it fails") };
    assert!(failure.message.ends_with("x… (19991808 bytes more)"), "{} bytes", failure.message.len());
    worker.stop().await;
}
