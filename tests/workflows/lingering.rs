//! A workflow that only waits stays resident for a while. An answer in that time saves the replay
//! (part 2 of behaviour 22).

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use runledger::prelude::*;
use runledger::{RunState, Timings};
use runledger_tests::rows::{scalar, soon, until};
use runledger_tests::{Fixture, eventually};
use tokio::sync::Semaphore;

/// Longer than any wait in these tests.
const FOR_EVER: Duration = Duration::from_secs(3600);

#[job]
async fn answered_child(n: u64) -> Result<u64> {
    Ok(n + 1)
}

static ENTRIES: AtomicU32 = AtomicU32::new(0);

#[workflow]
async fn waits_shortly(wf: &Wf) -> Result<u64> {
    ENTRIES.fetch_add(1, Ordering::Relaxed);
    let child = wf.start(answered_child(1)).await?;
    let answer = child.result().await?;
    let more: u64 = wf.signal("more").await?;
    wf.sleep(Duration::from_millis(400)).await?;
    Ok(answer + more)
}

#[tokio::test(flavor = "multi_thread")]
async fn resident_run_answered_while_waiting_is_not_replayed() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let app = App::new(db.clone()).with(jobs![waits_shortly, answered_child]).timings(Timings::FAST);
    let worker = app.idle_residency(FOR_EVER).start().await.unwrap();
    let handle = waits_shortly().enqueue(&db).await.unwrap();
    let recorded = format!("select count(*) from runledger.step where run_id = '{}'", handle.id());
    eventually(async || scalar::<i64>(&db, &recorded).await, |n_steps| *n_steps == 2).await;
    handle.signal("more", &40_u64).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 42);
    assert_eq!(ENTRIES.load(Ordering::Relaxed), 1, "it waited three times, and its code ran once");
    worker.stop().await;
}

static TOLD: Semaphore = Semaphore::const_new(0);

#[job]
async fn told_child() -> Result<u64> {
    TOLD.acquire().await?.forget();
    Ok(1)
}

#[workflow]
async fn stays_beside_its_child(wf: &Wf) -> Result<u64> {
    Ok(wf.start(told_child()).await?.result().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn resident_run_is_notified_when_its_child_ends() {
    let Fixture { db, database } = Fixture::new().await;
    let mut listener = sqlx::postgres::PgListener::connect(database.url()).await.unwrap();
    listener.listen("runledger_nudge").await.unwrap();
    let app = App::new(db.clone()).with(jobs![stays_beside_its_child, told_child]).timings(Timings::FAST);
    let worker = app.idle_residency(FOR_EVER).start().await.unwrap();
    let run = stays_beside_its_child().enqueue(&db).await.unwrap();
    let n_leases = "select count(*) from runledger.lease";
    eventually(async || scalar::<i64>(&db, n_leases).await, |n| *n == 2).await;
    TOLD.add_permits(1);
    assert_eq!(soon(listener.recv()).await.unwrap().payload(), run.id().to_string());
    assert_eq!(soon(run.result()).await.unwrap(), 1);
    worker.stop().await;
}

static GATE: Semaphore = Semaphore::const_new(0);

#[job]
async fn child_behind_a_gate(n: u64) -> Result<u64> {
    GATE.acquire().await?.forget();
    Ok(n)
}

#[workflow]
async fn waits_behind_a_gate(wf: &Wf, n: u64) -> Result<u64> {
    Ok(wf.start(child_behind_a_gate(n)).await?.result().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_run_suspends_when_it_occupies_last_slot() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let app =
        App::new(db.clone()).with(jobs![waits_behind_a_gate, child_behind_a_gate]).timings(Timings::FAST);
    let worker = app.idle_residency(FOR_EVER).concurrency(2).start().await.unwrap();
    let mut handles = Vec::new();
    for n in 0..4 {
        handles.push(waits_behind_a_gate(n).enqueue(&db).await.unwrap());
    }
    GATE.add_permits(4);
    for (n, handle) in (0..).zip(handles) {
        assert_eq!(soon(handle.result()).await.unwrap(), n);
    }
    worker.stop().await;
}

#[job]
async fn endless_child(_n: u64) -> Result<()> {
    std::future::pending().await
}

#[workflow]
async fn waits_for_endless(wf: &Wf, n: u64) -> Result<()> {
    let mut children = Vec::new();
    for i in 0..n {
        children.push(wf.start(endless_child(i)).await?);
    }
    futures::future::try_join_all(children.iter().map(runledger::Child::result)).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn run_with_many_waits_or_zero_residency_suspends_immediately() {
    for (n_children, linger) in [(9, FOR_EVER), (1, Duration::ZERO)] {
        let Fixture { db, database: _database } = Fixture::new().await;
        let app = App::new(db.clone()).with(jobs![waits_for_endless, endless_child]).timings(Timings::FAST);
        let worker = app.idle_residency(linger).start().await.unwrap();
        let handle = waits_for_endless(n_children).enqueue(&db).await.unwrap();
        until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
        handle.cancel("nobody answers").await.unwrap();
        worker.stop().await;
    }
}
