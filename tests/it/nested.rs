//! Steps inside steps are refused, and the refusal concerns the step that is inside alone.

use std::time::Duration;

use runledger::prelude::*;
use runledger::{ClientError, enqueue_all};
use runledger_tests::{Fixture, PATIENCE};

#[job]
async fn nested_plain(n: u64) -> Result<u64> {
    Ok(n + 1)
}

#[workflow]
async fn nested_in_the_closure(wf: &Wf) -> Result<u64> {
    Ok(wf.step("outer", || wf.run(nested_plain(1))).await?)
}

#[workflow]
async fn nested_after_a_panic(wf: &Wf) -> Result<bool> {
    let panicking =
        wf.step("panicking", || async { if true { panic!("boom") } else { Ok::<(), Error>(()) } });
    Ok(panicking.max_attempts(1).await.is_err())
}

#[workflow]
async fn nested_innocent(wf: &Wf, n: u64) -> Result<u64> {
    Ok(wf.run(nested_plain(n)).await?)
}

async fn worker(fixture: &Fixture) -> runledger::Worker {
    let jobs = jobs![nested_plain, nested_in_the_closure, nested_after_a_panic, nested_innocent];
    App::new(fixture.db.clone()).with(jobs).start().await.unwrap()
}

#[tokio::test]
async fn a_step_built_by_the_closure_of_another_is_refused_in_words() {
    let fixture = Fixture::new().await;
    let worker = worker(&fixture).await;
    let refused = nested_in_the_closure().enqueue(&fixture.db).await.unwrap().result_within(PATIENCE).await;
    let Err(ClientError::RunFailed { failure, .. }) = refused else { panic!("{refused:?}") };
    assert!(failure.to_string().contains("was started inside the body of another step"), "{failure}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_an_inline_step_leaves_the_steps_of_other_runs_alone() {
    let fixture = Fixture::new().await;
    let worker = worker(&fixture).await;
    assert!(
        nested_after_a_panic().enqueue(&fixture.db).await.unwrap().result_within(PATIENCE).await.unwrap()
    );
    let runs = enqueue_all((0..100).map(nested_innocent), &fixture.db).await.unwrap();
    for (n, run) in (0..).zip(runs) {
        let handle = Handle::of(nested_innocent, &fixture.db, run.run_id);
        assert_eq!(handle.result_within(PATIENCE).await.unwrap(), n + 1);
    }
    worker.stop().await;
}

#[job(max_attempts = 2)]
async fn nested_much_later() -> Result<()> {
    Err(Error::retry_after("later", Duration::from_secs(3_000_000_000)))
}

#[tokio::test]
async fn a_retry_in_the_far_future_does_not_keep_the_worker_from_other_runs() {
    let fixture = Fixture::new().await;
    let worker =
        App::new(fixture.db.clone()).with(jobs![nested_much_later, nested_plain]).start().await.unwrap();
    let later = nested_much_later().enqueue(&fixture.db).await.unwrap();
    runledger_tests::eventually(async || later.attempts().await.unwrap().len(), |n| *n == 1).await;
    let plain = nested_plain(1).enqueue(&fixture.db).await.unwrap();
    assert_eq!(plain.result_within(PATIENCE).await.unwrap(), 2);
    worker.stop().await;
}
