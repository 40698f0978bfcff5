//! One pass through everything: a job, and a workflow with steps, a sleep and a child.
use runledger::ClientError;
use runledger::prelude::*;
use runledger_tests::{Fixture, PATIENCE};
use std::time::Duration;

#[job]
async fn double(n: u64) -> Result<u64> {
    Ok(n * 2)
}

#[workflow]
async fn sum(wf: &Wf, n: u64) -> Result<u64> {
    let a = wf.run(double(n)).await?;
    let (b, c) = tokio::try_join!(wf.run(double(a)), wf.step("c", || async { Ok::<u64, Error>(a + 1) }))?;
    wf.sleep(Duration::from_millis(600)).await?;
    let child = wf.start(double(7)).await?;
    Ok(a + b + c + child.result().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn workflow_with_steps_sleep_and_child_returns_result() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let h = double(21).enqueue(&db).await.unwrap();
    let worker = App::new(db.clone()).with(jobs![double, sum]).start().await.unwrap();
    assert_eq!(h.result_within(PATIENCE).await.unwrap(), 42);
    let h = sum(3).enqueue(&db).await.unwrap();
    assert_eq!(h.result_within(PATIENCE).await.unwrap(), 6 + 12 + 7 + 14);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn untyped_handle_returns_result_as_json() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let run: RunHandle<u64> = double(21).enqueue(&db).await.unwrap();
    let worker = App::new(db.clone()).with(jobs![double]).start().await.unwrap();
    let untyped: RunHandle = db.run(run.id());
    assert_eq!(untyped.result_within(PATIENCE).await.unwrap(), serde_json::json!(42));
    assert_eq!(untyped.info().await.unwrap().job, "double");
    let nobody = db.run(uuid::Uuid::nil()).info().await.unwrap_err();
    assert!(matches!(nobody, ClientError::NoSuchRun { .. }), "{nobody}");
    worker.stop().await;
}
