//! One pass through everything: a job, and a workflow with steps, a sleep and a child.
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
async fn a_workflow_with_steps_a_sleep_and_a_child_gives_its_result() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let h = double(21).enqueue(&db).await.unwrap();
    let worker = App::new(db.clone()).with(jobs![double, sum]).start().await.unwrap();
    assert_eq!(h.result_within(PATIENCE).await.unwrap(), 42);
    let h = sum(3).enqueue(&db).await.unwrap();
    assert_eq!(h.result_within(PATIENCE).await.unwrap(), 6 + 12 + 7 + 14);
    worker.stop().await;
}
