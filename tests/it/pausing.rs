//! Pausing and resuming a run.

use std::sync::atomic::{AtomicU32, Ordering};

use runledger::prelude::*;
use runledger::{Cancelled, ClientError, Paused, RunState};
use runledger_tests::rows::{LONG, execute, scalar, soon, until, worker};
use runledger_tests::{Fixture, eventually};
use tokio::sync::Semaphore;

use crate::children::{child_of, child_that_sleeps};

#[job]
async fn quick() -> Result<u64> {
    Ok(1)
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_queued_run_is_not_claimed_until_resumed() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let (paused, other) = (quick().enqueue(&db).await.unwrap(), quick().enqueue(&db).await.unwrap());
    assert_eq!(paused.pause("the bank is closed").await.unwrap(), Paused::Now);
    assert_eq!(paused.pause("again").await.unwrap(), Paused::Now);
    let worker = worker(&db, jobs![quick]).await;
    soon(other.result()).await.unwrap();
    let info = paused.info().await.unwrap();
    assert_eq!((info.state, info.attempt), (RunState::Paused, 0));
    assert_eq!(info.pause_reason.as_deref(), Some("the bank is closed"), "the first reason stands");
    paused.resume().await.unwrap();
    assert_eq!(soon(paused.result()).await.unwrap(), 1);
    let (late, never) = (paused.pause("too late").await.unwrap_err(), paused.resume().await.unwrap_err());
    for error in [late, never] {
        assert!(matches!(error, ClientError::WrongState { state: RunState::Completed, .. }), "{error}");
    }
    worker.stop().await;
}

static MUST_NOT_BEGIN: AtomicU32 = AtomicU32::new(0);

#[job]
async fn counts_its_begins() -> Result<()> {
    MUST_NOT_BEGIN.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn requeued_run_with_unread_pause_request_pauses_without_starting() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let paused = counts_its_begins().enqueue(&db).await.unwrap();
    // The run returned to its queue before its worker read the request.
    execute(&db, "insert into runledger.pause (run_id, reason) select run_id, 'late' from runledger.ready")
        .await;
    let worker = worker(&db, jobs![counts_its_begins]).await;
    let info = until(&db, paused.id(), |info| info.state == RunState::Paused).await;
    assert_eq!((info.attempt, info.pause_reason.as_deref()), (0, Some("late")));
    assert_eq!(MUST_NOT_BEGIN.load(Ordering::SeqCst), 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pause_and_resume_leave_start_time_of_delayed_run_unchanged() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let handle = quick().delay(LONG * 60).enqueue(&db).await.unwrap();
    let ready_at = handle.info().await.unwrap().ready_at;
    handle.pause("for now").await.unwrap();
    handle.resume().await.unwrap();
    let info = handle.info().await.unwrap();
    assert_eq!((info.state, info.ready_at, info.pause_reason), (RunState::Queued, ready_at, None));
}

static BEGUN: AtomicU32 = AtomicU32::new(0);
static RECORDED: AtomicU32 = AtomicU32::new(0);
static WORK: Semaphore = Semaphore::const_new(0);

#[workflow]
async fn works_for_long(wf: &Wf) -> Result<u32> {
    wf.step("before", || async { Ok::<_, Error>(RECORDED.fetch_add(1, Ordering::SeqCst)) }).await?;
    let long = || async {
        BEGUN.fetch_add(1, Ordering::SeqCst);
        WORK.acquire().await.map_err(Error::terminal)?.forget();
        Ok::<_, Error>(())
    };
    wf.step("long", long).await?;
    Ok(RECORDED.load(Ordering::SeqCst))
}

#[tokio::test(flavor = "multi_thread")]
async fn running_run_pauses_without_spending_attempt() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![works_for_long]).await;
    let handle = works_for_long().enqueue(&db).await.unwrap();
    eventually(async || BEGUN.load(Ordering::SeqCst), |n| *n == 1).await;
    assert_eq!(handle.pause("lunch").await.unwrap(), Paused::Requested);
    let info = until(&db, handle.id(), |info| info.state == RunState::Paused).await;
    assert_eq!((info.attempt, info.crashes, info.pause_reason.as_deref()), (0, 0, Some("lunch")));
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.pause").await, 0);
    handle.resume().await.unwrap();
    eventually(async || BEGUN.load(Ordering::SeqCst), |n| *n == 2).await;
    WORK.add_permits(1);
    assert_eq!(soon(handle.result()).await.unwrap(), 1, "what was recorded was not done again");
    assert_eq!(handle.info().await.unwrap().attempt, 1);
    worker.stop().await;
}

static CHILD: Semaphore = Semaphore::const_new(0);

#[job]
async fn paused_parents_child() -> Result<u64> {
    CHILD.acquire().await?.forget();
    Ok(5)
}

#[workflow]
async fn paused_parent(wf: &Wf) -> Result<u64> {
    Ok(wf.start(paused_parents_child()).await?.result().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn child_completion_during_parent_pause_is_not_lost() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![paused_parent, paused_parents_child]).await;
    let handle = paused_parent().enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
    assert_eq!(handle.pause("for now").await.unwrap(), Paused::Now);
    let child = child_of(&db, handle.id()).await;
    CHILD.add_permits(1);
    until(&db, child, |info| info.state == RunState::Completed).await;
    assert_eq!(handle.state().await.unwrap(), RunState::Paused, "the child goes on, its parent does not");
    handle.resume().await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 5);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_run_can_be_cancelled() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let handle = quick().enqueue(&db).await.unwrap();
    handle.pause("for now").await.unwrap();
    assert_eq!(handle.cancel("for good").await.unwrap(), Cancelled::Now);
    let info = handle.info().await.unwrap();
    assert_eq!((info.state, info.pause_reason), (RunState::Cancelled, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_pause_request_takes_effect_while_run_sleeps() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![child_that_sleeps]).await;
    let handle = child_that_sleeps().enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.cause.as_deref() == Some("slept")).await;
    let request =
        format!("insert into runledger.pause (run_id, reason) values ('{}', 'missed')", handle.id());
    execute(&db, &request).await;
    let info = until(&db, handle.id(), |info| info.state == RunState::Paused).await;
    assert_eq!(info.pause_reason.as_deref(), Some("missed"));
    handle.resume().await.unwrap();
    assert_eq!(handle.state().await.unwrap(), RunState::Queued);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn resume_withdraws_pending_pause_request() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let handle = quick().enqueue(&db).await.unwrap();
    // Simulates a worker that does not react.
    let held = format!(
        "delete from runledger.ready;
         insert into runledger.lease values ('{}', gen_random_uuid(), 1, 1, 0, 1, now())",
        handle.id()
    );
    execute(&db, &held).await;
    assert_eq!(handle.pause("for now").await.unwrap(), Paused::Requested);
    handle.resume().await.unwrap();
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.pause").await, 0);
    let again = handle.resume().await.unwrap_err();
    assert!(matches!(again, ClientError::WrongState { state: RunState::Running, .. }), "{again}");
}

#[workflow]
async fn paused_listener(wf: &Wf) -> Result<u64> {
    Ok(wf.signal("number").await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn signal_during_pause_is_delivered_after_resume() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![paused_listener]).await;
    let handle = paused_listener().enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
    assert_eq!(handle.pause("for now").await.unwrap(), Paused::Now);
    handle.signal("number", &7_u64).await.unwrap();
    assert_eq!(handle.state().await.unwrap(), RunState::Paused, "it does not wake it");
    handle.resume().await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 7);
    worker.stop().await;
}
