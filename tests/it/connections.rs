//! Connections that are silent, and bodies that hold many.

use std::sync::Arc;
use std::time::Duration;

use runledger::prelude::*;
use runledger::{ClientError, Timings};
use runledger_tests::proxy::{Mode, Proxy};
use runledger_tests::{Fixture, PATIENCE, eventually};
use tokio::sync::Semaphore;

use crate::rows::scalar;

#[job]
async fn connections_plain(n: u32) -> Result<u32> {
    Ok(n)
}

#[workflow]
async fn connections_gated(wf: &Wf, #[inject] gate: &Arc<Semaphore>) -> Result<u32> {
    wf.run(connections_plain(1)).await?;
    wf.step("gate", || async {
        gate.acquire().await?.forget();
        Ok::<_, Error>(())
    })
    .await?;
    Ok(wf.run(connections_plain(2)).await?)
}

#[job]
async fn connections_held(#[inject] gate: &Arc<Semaphore>, #[inject] tx: &mut Tx) -> Result<()> {
    sqlx::query("select 1").execute(&mut **tx).await?;
    gate.acquire().await?.forget();
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_connections_are_forgotten_by_a_firewall_goes_on_with_others() {
    let Fixture { db, database } = Fixture::new().await;
    let proxy = Proxy::start(database.url()).await.unwrap();
    let gate = Arc::new(Semaphore::new(0));
    let worker = App::new(Db::connect(proxy.url()).await.unwrap())
        .with(jobs![connections_plain, connections_gated])
        .timings(Timings::FAST)
        .provide(Arc::clone(&gate))
        .start()
        .await
        .unwrap();
    let gated = connections_gated().enqueue(&db).await.unwrap();
    eventually(async || gated.steps().await.unwrap().len(), |n| *n == 1).await;
    proxy.strand();
    gate.add_permits(1);
    let plain = connections_plain(3).enqueue(&db).await.unwrap();
    assert_eq!(plain.result_within(PATIENCE).await.unwrap(), 3);
    assert_eq!(gated.result_within(PATIENCE).await.unwrap(), 2);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transactional_bodies_leave_connections_of_the_pool_to_others() {
    let Fixture { db, database } = Fixture::new().await;
    let gate = Arc::new(Semaphore::new(0));
    let own = Db::connect(database.url()).await.unwrap();
    let worker = App::new(own.clone())
        .with(jobs![connections_plain, connections_held])
        .provide(Arc::clone(&gate))
        .start()
        .await
        .unwrap();
    let held = runledger::enqueue_all((0..40).map(|_| connections_held()), &db).await.unwrap();
    let begun = "select count(*) from pg_stat_activity where datname = current_database() and state = 'idle in transaction'";
    eventually(async || scalar::<i64>(&db, begun).await, |n| *n >= 5).await;
    for n in 0..20 {
        assert_eq!(
            connections_plain(n).enqueue(&own).await.unwrap().result_within(PATIENCE).await.unwrap(),
            n
        );
    }
    gate.add_permits(held.len());
    for run in held {
        Handle::of(connections_held, &db, run.run_id).result_within(PATIENCE).await.unwrap();
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limited_wait_ends_though_the_database_does_not_answer() {
    let Fixture { db: _db, database } = Fixture::new().await;
    let proxy = Proxy::start(database.url()).await.unwrap();
    let db = Db::connect(proxy.url()).await.unwrap();
    let handle = connections_plain(1).enqueue(&db).await.unwrap();
    // It has looked, and listens.
    let listens = handle.result_within(Duration::from_millis(500)).await;
    assert!(matches!(listens, Err(ClientError::StillGoing { .. })), "{listens:?}");
    proxy.set(Mode::BlackHole);
    let silent = tokio::time::timeout(PATIENCE, handle.result_within(Duration::from_millis(100))).await;
    assert!(matches!(silent, Ok(Err(ClientError::StillGoing { .. }))), "{silent:?}");
}
