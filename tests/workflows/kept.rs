//! Steps that the code has started and no longer polls, as in a stream whose items the code awaits.
//! They may hold what other steps need.

use std::future::pending;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures::StreamExt;
use runledger::prelude::*;
use runledger::{FailureKind, RunState, Step, StepTx, enqueue_all};
use runledger_tests::Fixture;
use runledger_tests::rows::{execute, scalar, soon, until, worker};
use tokio::sync::Semaphore;

/// A client whose pool has two connections for transactional bodies.
async fn with_two(url: &str) -> Db {
    Db::connect_with(url.parse().unwrap(), 7).await.unwrap()
}

#[job]
async fn entered(n: i64, #[inject] tx: &mut Tx) -> Result<i64> {
    sqlx::query("insert into ledger values ($1)").bind(n).execute(&mut **tx).await?;
    Ok(n)
}

/// While the code awaits a step for one item, nothing polls the steps of the stream.
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
async fn transactional_job_progresses_while_workflow_awaits_another_step() {
    let Fixture { db, database } = Fixture::new().await;
    execute(&db, "create table ledger (n bigint)").await;
    let few = with_two(database.url()).await;
    let worker = worker(&few, jobs![streams, entered]).await;
    let runs = enqueue_all((0..4).map(|_| streams()), &db).await.unwrap();
    for run in &runs {
        let sum = soon(RunHandle::attach(streams, &db, run.run_id).result()).await.unwrap();
        assert_eq!(sum, (0..16).map(|n| 100 + n).sum::<i64>());
    }
    assert_eq!(scalar::<i64>(&db, "select count(*) from ledger").await, 4 * 32);
    worker.stop().await;
}

/// Needs more than one poll, even if the server is fast.
async fn enters(mut tx: StepTx) -> Result<()> {
    tokio::task::yield_now().await;
    sqlx::query("insert into ledger values (0)").execute(&mut *tx).await?;
    Ok(())
}

/// Starts a step, stops polling it, and awaits something else.
async fn keeps(wf: &Wf, step: Step<'_, ()>) -> Result<()> {
    let mut entry = pin!(step);
    let early = futures::poll!(entry.as_mut());
    wf.signal::<()>("go").await?;
    match early {
        // An earlier attempt has recorded the step.
        Poll::Ready(entered) => entered.map(drop)?,
        Poll::Pending => entry.await.map(drop)?,
    }
    Ok(())
}

#[workflow]
async fn keeps_a_transaction(wf: &Wf) -> Result<()> {
    keeps(wf, wf.tx("entry", enters)).await
}

/// As [`enters`], as a job.
#[job]
async fn enters_later(#[inject] tx: &mut Tx) -> Result<()> {
    tokio::task::yield_now().await;
    sqlx::query("insert into ledger values (0)").execute(&mut **tx).await?;
    Ok(())
}

#[job]
async fn taken_back() -> Result<()> {
    Ok(())
}

/// As [`keeps_a_transaction`], for a step with a compensation.
#[workflow]
async fn keeps_an_undoable(wf: &Wf) -> Result<()> {
    keeps(wf, wf.saga().run(enters_later(), |()| taken_back())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn run_suspends_and_rolls_back_its_unpolled_transaction() {
    let Fixture { db, database } = Fixture::new().await;
    execute(&db, "create table ledger (n bigint)").await;
    let few = with_two(database.url()).await;
    let worker =
        worker(&few, jobs![keeps_a_transaction, keeps_an_undoable, taken_back, enters_later, entered]).await;
    let one = keeps_a_transaction().enqueue(&db).await.unwrap();
    let two = keeps_an_undoable().enqueue(&db).await.unwrap();
    for run_id in [one.id(), two.id()] {
        until(&db, run_id, |run| run.state == RunState::Waiting).await;
    }
    assert_eq!(scalar::<i64>(&db, "select count(*) from ledger").await, 0);
    // Other bodies get a connection, and the transactions start again when the code polls their
    // steps.
    assert_eq!(soon(entered(1).enqueue(&db).await.unwrap().result()).await.unwrap(), 1);
    one.signal("go", &()).await.unwrap();
    two.signal("go", &()).await.unwrap();
    soon(one.result()).await.unwrap();
    soon(two.result()).await.unwrap();
    assert_eq!(scalar::<i64>(&db, "select count(*) from ledger").await, 3);
    worker.stop().await;
}

static FIRST_ENTERED: Semaphore = Semaphore::const_new(0);

/// Starts as many transactions as the pool allows, stops polling them, and awaits another. When the
/// code gets the first one, the others are in their bodies.
#[workflow]
async fn streams_transactions(wf: &Wf) -> Result<()> {
    let entry = |n| {
        wf.tx("entry", move |tx| async move {
            if n > 0 {
                FIRST_ENTERED.acquire().await?.forget();
            }
            enters(tx).await
        })
    };
    let mut entries = pin!(futures::stream::iter((0..4).map(entry)).buffer_unordered(3));
    while let Some(entry) = entries.next().await {
        entry?;
        FIRST_ENTERED.add_permits(3);
        wf.tx("other", enters).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn run_deadlocked_on_unpolled_transactions_is_blocked_and_frees_connections() {
    let Fixture { db, database } = Fixture::new().await;
    execute(&db, "create table ledger (n bigint)").await;
    let few = with_two(database.url()).await;
    let worker = worker(&few, jobs![streams_transactions, entered]).await;
    let keeper = streams_transactions().enqueue(&db).await.unwrap();
    let blocked = until(&db, keeper.id(), |run| run.state == RunState::Blocked).await;
    let failure = blocked.error.unwrap();
    assert_eq!(failure.kind, FailureKind::Setup);
    assert!(failure.message.contains("step `entry"), "{failure}");
    assert!(failure.message.contains("has not polled"), "{failure}");
    assert_eq!(soon(entered(1).enqueue(&db).await.unwrap().result()).await.unwrap(), 1);
    worker.stop().await;
}

#[job]
async fn never_committed(#[inject] tx: &mut Tx) -> Result<()> {
    sqlx::query("insert into ledger values (-1)").execute(&mut **tx).await?;
    pending().await
}

/// The step loses the race in the middle of its body.
#[workflow]
async fn loses(wf: &Wf) -> Result<i64> {
    tokio::select! {
        never = wf.run(never_committed()) => never?,
        slept = wf.sleep(Duration::from_millis(50)) => slept?,
    }
    Ok(wf.run(entered(1)).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn transactional_job_losing_race_is_rolled_back_and_frees_connection() {
    let Fixture { db, database } = Fixture::new().await;
    execute(&db, "create table ledger (n bigint)").await;
    let few = with_two(database.url()).await;
    let worker = worker(&few, jobs![loses, never_committed, entered]).await;
    let runs = enqueue_all((0..8).map(|_| loses()), &db).await.unwrap();
    for run in &runs {
        assert_eq!(soon(RunHandle::attach(loses, &db, run.run_id).result()).await.unwrap(), 1);
    }
    assert_eq!(scalar::<i64>(&db, "select sum(n)::bigint from ledger").await, 8);
    worker.stop().await;
}

#[job]
async fn plain(n: i64) -> Result<i64> {
    Ok(n)
}

/// Awaits a child for each item while the steps of the next items are unpolled.
#[workflow]
async fn starts_between(wf: &Wf, transactional: bool) -> Result<i64> {
    let step = |n| if transactional { wf.run(entered(n)) } else { wf.run(plain(n)) };
    let mut items = pin!(futures::stream::iter((0..4).map(step)).buffer_unordered(2));
    let mut sum = 0;
    while let Some(n) = items.next().await {
        sum += wf.start(plain(10 + n?)).await?.result().await?;
    }
    Ok(sum)
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_run_frees_its_slot_despite_unpolled_steps() {
    let Fixture { db, database } = Fixture::new().await;
    execute(&db, "create table ledger (n bigint)").await;
    let app = App::new(with_two(database.url()).await).with(jobs![starts_between, entered, plain]);
    let worker = app.concurrency(1).start().await.unwrap();
    for transactional in [false, true] {
        let run = starts_between(transactional).enqueue(&db).await.unwrap();
        assert_eq!(soon(run.result()).await.unwrap(), 10 + 11 + 12 + 13);
    }
    worker.stop().await;
}

/// The code beside the transaction blocks the thread for longer than the limit for unpolled
/// transactions, then polls the transaction.
#[workflow(allow(sleep))]
async fn computes_beside(wf: &Wf) -> Result<()> {
    let computes = async {
        wf.run(plain(1)).await?;
        tokio::task::block_in_place(|| std::thread::sleep(Duration::from_secs(11)));
        Ok::<_, Error>(wf.run(plain(2)).await?)
    };
    let entry = wf.tx("entry", |mut tx| async move {
        sqlx::query("select pg_sleep(1)").execute(&mut *tx).await?;
        enters(tx).await
    });
    let (entry, computed) = futures::join!(entry, computes);
    entry?;
    computed.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn long_computation_does_not_abort_transaction_polled_around_it() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, "create table ledger (n bigint)").await;
    let worker = worker(&db, jobs![computes_beside, plain]).await;
    soon(computes_beside().enqueue(&db).await.unwrap().result()).await.unwrap();
    worker.stop().await;
}
