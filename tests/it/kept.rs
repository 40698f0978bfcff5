//! Steps that the code has begun and then keeps without polling them, as a stream does whose items the code works on: what they hold is others' too.

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use runledger::prelude::*;
use runledger::{FailureKind, RunState, StepTx, enqueue_all};
use runledger_tests::Fixture;

use crate::rows::{execute, scalar, soon, until, worker};

/// A client whose pool leaves two connections to transactional bodies.
async fn with_two(url: &str) -> Db {
    Db::connect_with(url.parse().unwrap(), 7).await.unwrap()
}

#[job]
async fn entered(n: i64, #[inject] tx: &mut Tx) -> Result<i64> {
    sqlx::query("insert into ledger values ($1)").bind(n).execute(&mut **tx).await?;
    Ok(n)
}

/// While the code awaits a step for an item, nothing polls the steps of the stream.
#[workflow]
async fn streams(wf: &Wf) -> Result<i64> {
    let mut entries = futures::stream::iter((0..16).map(|n| wf.run(entered(n)))).buffer_unordered(8);
    let mut sum = 0;
    while let Some(n) = entries.next().await {
        sum += wf.run(entered(100 + n?)).await?;
    }
    Ok(sum)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transactional_job_goes_on_though_the_code_awaits_another_step() {
    let Fixture { db, database } = Fixture::new().await;
    execute(&db, "create table ledger (n bigint)").await;
    let few = with_two(database.url()).await;
    let worker = worker(&few, jobs![streams, entered]).await;
    let runs = enqueue_all((0..4).map(|_| streams()), &db).await.unwrap();
    for run in &runs {
        let sum = soon(Handle::of(streams, &db, run.run_id).result()).await.unwrap();
        assert_eq!(sum, (0..16).map(|n| 100 + n).sum::<i64>());
    }
    assert_eq!(scalar::<i64>(&db, "select count(*) from ledger").await, 4 * 32);
    worker.stop().await;
}

async fn enters(mut tx: StepTx) -> Result<()> {
    sqlx::query("insert into ledger values (0)").execute(&mut *tx).await?;
    Ok(())
}

/// Begins a transaction, and then awaits something else.
#[workflow]
async fn keeps_a_transaction(wf: &Wf) -> Result<()> {
    let mut entry = pin!(wf.tx("entry", enters));
    let _ = futures::poll!(entry.as_mut());
    wf.signal::<()>("go").await?;
    entry.await?;
    Ok(())
}

#[job]
async fn taken_back() -> Result<()> {
    Ok(())
}

/// The same, of a step whose closure makes its undo.
#[workflow]
async fn keeps_an_undoable(wf: &Wf) -> Result<()> {
    let saga = wf.saga();
    let mut entry = pin!(saga.run(entered(0), |_| taken_back()));
    let _ = futures::poll!(entry.as_mut());
    wf.signal::<()>("go").await?;
    entry.await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_the_code_keeps_and_does_not_poll_parks_the_run_and_is_given_back() {
    let Fixture { db, database } = Fixture::new().await;
    execute(&db, "create table ledger (n bigint)").await;
    let few = with_two(database.url()).await;
    let worker = worker(&few, jobs![keeps_a_transaction, keeps_an_undoable, taken_back, entered]).await;
    let (one, two) =
        (keeps_a_transaction().enqueue(&db).await.unwrap(), keeps_an_undoable().enqueue(&db).await.unwrap());
    for (step, keeper) in [("entry", one.id()), ("entered", two.id())] {
        let blocked = until(&db, keeper, |run| run.state == RunState::Blocked).await;
        let failure = blocked.error.unwrap();
        assert_eq!(failure.kind, FailureKind::Setup);
        assert!(failure.message.contains(&format!("`{step}`")), "{failure}");
        assert!(failure.message.contains("has not polled"), "{failure}");
    }
    assert_eq!(scalar::<i64>(&db, "select count(*) from ledger").await, 0);
    // Others have their turn, and the keepers go on where the code polls them.
    assert_eq!(soon(entered(1).enqueue(&db).await.unwrap().result()).await.unwrap(), 1);
    one.signal("go", &()).send(&db).await.unwrap();
    one.resume().await.unwrap();
    soon(one.result()).await.unwrap();
    two.signal("go", &()).send(&db).await.unwrap();
    two.resume().await.unwrap();
    soon(two.result()).await.unwrap();
    assert_eq!(scalar::<i64>(&db, "select count(*) from ledger").await, 3);
    worker.stop().await;
}

#[job]
async fn never_committed(#[inject] tx: &mut Tx) -> Result<()> {
    sqlx::query("insert into ledger values (-1)").execute(&mut **tx).await?;
    pending().await
}

/// Its step loses the race in the middle of its body.
#[workflow]
async fn loses(wf: &Wf) -> Result<i64> {
    tokio::select! {
        never = wf.run(never_committed()) => never?,
        slept = wf.sleep(Duration::from_millis(50)) => slept?,
    }
    Ok(wf.run(entered(1)).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transactional_job_that_loses_a_race_is_rolled_back_and_gives_its_connection_back() {
    let Fixture { db, database } = Fixture::new().await;
    execute(&db, "create table ledger (n bigint)").await;
    let few = with_two(database.url()).await;
    let worker = worker(&few, jobs![loses, never_committed, entered]).await;
    let runs = enqueue_all((0..8).map(|_| loses()), &db).await.unwrap();
    for run in &runs {
        assert_eq!(soon(Handle::of(loses, &db, run.run_id).result()).await.unwrap(), 1);
    }
    assert_eq!(scalar::<i64>(&db, "select sum(n)::bigint from ledger").await, 8);
    worker.stop().await;
}
