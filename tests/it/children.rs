//! Behaviours 22, 24 and 25, for children.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use runledger::prelude::*;
use runledger::{Cancelled, ClientError, RunState, Timings};
use runledger_tests::rows::{LONG, execute, scalar, soon, take_away, until, worker};
use runledger_tests::{Fixture, eventually};
use tokio::sync::Semaphore;
use uuid::Uuid;

static CHILD_GATE: Semaphore = Semaphore::const_new(0);

#[job]
async fn gated_child(n: u64) -> Result<u64> {
    CHILD_GATE.acquire().await?.forget();
    Ok(n * 2)
}

#[workflow]
async fn waits_for_children(wf: &Wf, n: u64) -> Result<u64> {
    let mut children = Vec::new();
    for i in 0..n {
        children.push(wf.start(gated_child(i)).await?);
    }
    let mut sum = 0;
    for output in futures::future::join_all(children.iter().map(runledger::Child::result)).await {
        sum += output?;
    }
    Ok(sum)
}

#[tokio::test(flavor = "multi_thread")]
async fn parent_waiting_for_children_frees_its_slot() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let app = App::new(db.clone()).with(jobs![waits_for_children, gated_child]).timings(Timings::FAST);
    let worker = app.concurrency(1).start().await.unwrap();
    let handle = waits_for_children(5).enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
    let held = format!("select count(*) from runledger.lease where run_id = '{}'", handle.id());
    assert_eq!(scalar::<i64>(&db, &held).await, 0);
    CHILD_GATE.add_permits(5);
    assert_eq!(soon(handle.result()).await.unwrap(), 20);
    assert_eq!(handle.info().await.unwrap().attempt, 1, "waiting consumes no attempt");
    let n_runs: i64 = scalar(&db, "select count(*) from runledger.run").await;
    assert_eq!(n_runs, 6, "each child was started once");
    worker.stop().await;
}

/// Starts itself again and again.
#[workflow(max_attempts = 2, backoff = "1ms..1ms")]
async fn starts_itself(wf: &Wf) -> Result<u64> {
    Ok(wf.start(starts_itself()).await?.result().await? + 1)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn self_starting_workflow_fails_at_depth_limit_naming_root_run() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![starts_itself]).await;
    let handle = starts_itself().enqueue(&db).await.unwrap();
    let ClientError::RunFailed { failure, .. } = soon(handle.result()).await.unwrap_err() else { panic!() };
    let limit = format!("100 runs are above this one, up to run `{}`", handle.id());
    assert!(failure.to_string().contains(&limit), "{failure}");
    let depths = "select count(*) || ' runs to ' || max(depth) from runledger.run";
    assert_eq!(scalar::<String>(&db, depths).await, "101 runs to 100");
    let tried =
        "select max(attempt) from runledger.outcome join runledger.run using (run_id) where depth = 100";
    assert_eq!(scalar::<i32>(&db, tried).await, 1, "it is not tried again");
    // The revived run starts new children in place of the old ones, just as deep.
    let revived = handle.revive(RunState::Failed).await.unwrap();
    until(&db, revived.id(), |info| info.state == RunState::Failed).await;
    let revived =
        "select count(*) || ' runs to ' || max(depth) from runledger.run where origin_id is not null";
    assert_eq!(scalar::<String>(&db, revived).await, "101 runs to 100");
    worker.stop().await;
}

static FORGETFUL_GATE: Semaphore = Semaphore::const_new(0);

#[workflow]
async fn waits_for_a_forgotten_child(wf: &Wf) -> Result<u64> {
    let child = wf.start(quick_child(3)).await?;
    FORGETFUL_GATE.acquire().await?.forget();
    Ok(child.result().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn parent_restarts_child_lost_in_failover() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let app = App::new(db.clone()).with(jobs![waits_for_a_forgotten_child, quick_child]);
    // The parent uses the only slot, so the child stays queued.
    let worker = app.timings(Timings::FAST).concurrency(1).start().await.unwrap();
    let handle = waits_for_a_forgotten_child().enqueue(&db).await.unwrap();
    let n_children = "select count(*) from runledger.run where parent_id is not null";
    eventually(async || scalar::<i64>(&db, n_children).await, |n| *n == 1).await;
    // Simulates a promoted standby that had not received the start.
    let forget = format!(
        "delete from runledger.ready;
        delete from runledger.step where run_id = '{0}';
        delete from runledger.run where run_id <> '{0}'",
        handle.id()
    );
    execute(&db, &forget).await;
    // Each replay passes the gate.
    FORGETFUL_GATE.add_permits(100);
    assert_eq!(soon(handle.result()).await.unwrap(), 3);
    worker.stop().await;
}

#[job]
async fn quick_child(n: u64) -> Result<u64> {
    Ok(n)
}

#[workflow]
async fn many_quick_children(wf: &Wf, n: u64) -> Result<u64> {
    let starts = futures::future::try_join_all((0..n).map(|i| wf.start(quick_child(i)))).await?;
    let outputs = futures::future::try_join_all(starts.iter().map(runledger::Child::result)).await?;
    Ok(outputs.into_iter().sum())
}

#[tokio::test(flavor = "multi_thread")]
async fn parents_wake_whenever_their_children_end() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let one = worker(&db, jobs![many_quick_children, quick_child]).await;
    let two = worker(&db, jobs![many_quick_children, quick_child]).await;
    let mut handles = Vec::new();
    for _ in 0..20 {
        handles.push(many_quick_children(10).enqueue(&db).await.unwrap());
    }
    for handle in &handles {
        assert_eq!(soon(handle.result()).await.unwrap(), 45);
        assert_eq!(handle.info().await.unwrap().attempt, 1);
    }
    let n_runs: i64 = scalar(&db, "select count(*) from runledger.run").await;
    assert_eq!(n_runs, 20 * 11);
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parent_with_repeatedly_lost_lease_starts_each_child_once() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![many_quick_children, quick_child]).await;
    let mut handles = Vec::new();
    for _ in 0..10 {
        handles.push(many_quick_children(10).enqueue(&db).await.unwrap());
    }
    for _ in 0..3 {
        for handle in &handles {
            take_away(&db, handle.id()).await;
        }
    }
    for handle in &handles {
        assert_eq!(soon(handle.result()).await.unwrap(), 45);
    }
    let n_runs: i64 = scalar(&db, "select count(*) from runledger.run").await;
    assert_eq!(n_runs, 10 * 11);
    worker.stop().await;
}

#[job(max_attempts = 1)]
async fn failing_child() -> Result<u64> {
    Err(Error::terminal("the child had a bad day"))
}

#[workflow]
async fn hears_of_failure(wf: &Wf) -> Result<String> {
    let child = wf.start(failing_child()).await?;
    let error = child.result().await.unwrap_err();
    Ok(error.failure().to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn child_failure_reaches_parent_with_reason() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![hears_of_failure, failing_child]).await;
    let handle = hears_of_failure().enqueue(&db).await.unwrap();
    let text = soon(handle.result()).await.unwrap();
    assert!(text.contains("is failed") && text.contains("the child had a bad day"), "{text}");
    worker.stop().await;
}

#[workflow]
pub async fn child_that_sleeps(wf: &Wf) -> Result<u64> {
    wf.sleep(LONG * 60).await?;
    Ok(1)
}

#[workflow]
pub async fn parent_of_a_sleeper(wf: &Wf) -> Result<String> {
    let child = wf.start(child_that_sleeps()).await?;
    match child.result().await {
        Ok(output) => Ok(output.to_string()),
        Err(error) => Ok(error.failure().to_string()),
    }
}

#[workflow]
pub async fn grandparent(wf: &Wf) -> Result<String> {
    let child = wf.start(parent_of_a_sleeper()).await?;
    child.result().await.map_err(Into::into)
}

/// Waits for the only child of a run and returns its id.
pub async fn child_of(db: &Db, parent: Uuid) -> Uuid {
    let find = format!("select array(select run_id from runledger.run where parent_id = '{parent}')");
    eventually(async || scalar::<Vec<Uuid>>(db, &find).await, |children| children.len() == 1).await[0]
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_child_wakes_parent_with_reason() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![parent_of_a_sleeper, child_that_sleeps]).await;
    let handle = parent_of_a_sleeper().enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
    let child = runledger::RunHandle::attach(child_that_sleeps, &db, child_of(&db, handle.id()).await);
    until(&db, child.id(), |info| info.cause.as_deref() == Some("slept")).await;
    assert_eq!(child.cancel("no time").await.unwrap(), Cancelled::Now);
    let text = soon(handle.result()).await.unwrap();
    assert!(text.contains("is cancelled") && text.contains("no time"), "{text}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_of_waiting_run_is_immediate_and_reaches_grandchildren() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![grandparent, parent_of_a_sleeper, child_that_sleeps]).await;
    let handle = grandparent().enqueue(&db).await.unwrap();
    let child = child_of(&db, handle.id()).await;
    let grandchild = child_of(&db, child).await;
    for run_id in [handle.id(), child] {
        until(&db, run_id, |info| info.state == RunState::Waiting).await;
    }
    until(&db, grandchild, |info| info.cause.as_deref() == Some("slept")).await;
    assert_eq!(handle.cancel("all of it").await.unwrap(), Cancelled::Now);
    assert_eq!(handle.info().await.unwrap().state, RunState::Cancelled);
    // A worker may cancel the runs at the same time. The client skips runs that a worker has
    // locked.
    for run_id in [child, grandchild] {
        until(&db, run_id, |info| info.state == RunState::Cancelled).await;
    }
    assert!(matches!(handle.result().await, Err(ClientError::RunCancelled { .. })));
    let n_left: i64 = scalar(
        &db,
        "select (select count(*) from runledger.ready) + (select count(*) from runledger.waiting)",
    )
    .await;
    assert_eq!(n_left, 0);
    worker.stop().await;
}

static STUCK: Semaphore = Semaphore::const_new(0);

#[workflow]
pub async fn works_beside_its_child(wf: &Wf) -> Result<()> {
    wf.start(child_that_sleeps()).await?;
    let step = wf.step("stuck", || async {
        let _never = STUCK.acquire().await?;
        Ok::<(), Error>(())
    });
    step.await.map_err(Into::into)
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_of_running_run_cancels_its_child() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![works_beside_its_child, child_that_sleeps]).await;
    let handle = works_beside_its_child().enqueue(&db).await.unwrap();
    let child = child_of(&db, handle.id()).await;
    until(&db, child, |info| info.cause.as_deref() == Some("slept")).await;
    handle.cancel("stop").await.unwrap();
    for run_id in [handle.id(), child] {
        until(&db, run_id, |info| info.state == RunState::Cancelled).await;
    }
    worker.stop().await;
}

#[workflow]
async fn waits_at_most(wf: &Wf, limit: Duration) -> Result<String> {
    let child = wf.start(child_that_sleeps()).await?;
    tokio::select! {
        output = child.result() => Ok(format!("child {}", output?)),
        waited = wf.sleep(limit) => waited.map(|()| "time".to_owned()).map_err(Into::into),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_for_child_can_race_sleep_while_run_is_suspended() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![waits_at_most, child_that_sleeps]).await;
    let long = waits_at_most(LONG).enqueue(&db).await.unwrap();
    until(&db, long.id(), |info| info.state == RunState::Waiting).await;
    long.cancel("it has been seen").await.unwrap();
    let short = waits_at_most(Duration::from_millis(700)).enqueue(&db).await.unwrap();
    assert_eq!(soon(short.result()).await.unwrap(), "time");
    worker.stop().await;
}

static AGAIN: Semaphore = Semaphore::const_new(0);
static N_TRIED: AtomicU32 = AtomicU32::new(0);

#[job]
async fn child_of_two_attempts() -> Result<u64> {
    AGAIN.acquire().await?.forget();
    Ok(7)
}

#[workflow(max_attempts = 2, backoff = "1ms..1ms")]
async fn fails_once_above_its_child(wf: &Wf) -> Result<u64> {
    let child = wf.start(child_of_two_attempts()).await?;
    if N_TRIED.fetch_add(1, Ordering::SeqCst) == 0 {
        return Err("the first attempt fails".into());
    }
    AGAIN.add_permits(1);
    Ok(child.result().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn next_attempt_of_failed_parent_reuses_same_child() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![fails_once_above_its_child, child_of_two_attempts]).await;
    let handle = fails_once_above_its_child().enqueue(&db).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 7);
    assert_eq!(handle.info().await.unwrap().attempt, 2);
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run").await, 2, "it was started once");
    worker.stop().await;
}

#[workflow(max_attempts = 1)]
async fn leaves_word_and_fails(wf: &Wf) -> Result<()> {
    wf.tx("word", |mut tx| async move {
        Ok::<_, Error>(quick_child(3).delay(LONG * 60).enqueue(&mut tx).await?.id())
    })
    .await?;
    Err("and that is all".into())
}

#[tokio::test(flavor = "multi_thread")]
async fn run_enqueued_by_step_is_parentless_and_survives_workflow_failure() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![leaves_word_and_fails, quick_child]).await;
    let handle = leaves_word_and_fails().enqueue(&db).await.unwrap();
    assert!(matches!(soon(handle.result()).await, Err(ClientError::RunFailed { .. })));
    let left: Uuid = scalar(&db, "select run_id from runledger.run where job = 'quick_child'").await;
    let info = db.run(left).info().await.unwrap();
    assert_eq!((info.state, info.parent_id), (RunState::Queued, None));
    assert_eq!(
        scalar::<i64>(&db, "select count(*) from runledger.cancel").await,
        0,
        "nor is it asked to end"
    );
    worker.stop().await;
}

/// Begins to start more children than there are connections, stops polling those starts, and starts
/// another child.
#[workflow]
async fn keeps_starts_without_polling_them(wf: &Wf) -> Result<u64> {
    let mut kept: Vec<_> = (0..8).map(|n| wf.start(quick_child(n))).collect();
    for start in &mut kept {
        let _ = futures::poll!(start);
    }
    let another = wf.start(quick_child(8)).await?.result().await?;
    for start in kept {
        start.await?;
    }
    Ok(another)
}

#[tokio::test(flavor = "multi_thread")]
async fn unpolled_child_starts_do_not_block_other_starts() {
    let Fixture { db: _, database } = Fixture::new().await;
    let db = Db::connect_with(database.url().parse().unwrap(), 4).await.unwrap();
    let worker = worker(&db, jobs![keeps_starts_without_polling_them, quick_child]).await;
    let handle = keeps_starts_without_polling_them().enqueue(&db).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 8);
    worker.stop().await;
}
