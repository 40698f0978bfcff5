//! Runs that are still live when their parent fails.

use runledger::prelude::*;
use runledger::{ClientError, RunInfo, RunState, Timings};
use runledger_tests::rows::{execute, scalar, soon, until, worker};
use runledger_tests::{Fixture, eventually};
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::children::{child_of, child_that_sleeps, parent_of_a_sleeper};

const WHY: &str = "cancelled: a run above it has failed";

/// Waits for the run of this job and returns its id.
async fn run_of(db: &Db, job: &str) -> Uuid {
    let find = format!("select array(select run_id from runledger.run where job = '{job}')");
    eventually(async || scalar::<Vec<Uuid>>(db, &find).await, |runs| runs.len() == 1).await[0]
}

async fn cancelled(db: &Db, run_id: Uuid) -> String {
    let info: RunInfo = until(db, run_id, |info| info.state.is_terminal()).await;
    assert_eq!(info.state, RunState::Cancelled);
    info.error.unwrap().to_string()
}

async fn no_requests_are_left(db: &Db) {
    eventually(async || scalar::<i64>(db, "select count(*) from runledger.cancel").await, |n| *n == 0).await;
}

#[job]
async fn ends_at_once() -> Result<()> {
    Ok(())
}

#[job(max_attempts = 1)]
async fn second_item_fails(n: u64) -> Result<u64> {
    if n == 1 {
        return Err(Error::terminal("the second is no good"));
    }
    std::future::pending().await
}

#[workflow(max_attempts = 1)]
async fn spreads(wf: &Wf) -> Result<u64> {
    Ok(wf.map(0..6, second_item_fails).as_child_runs().limit(3).await?.into_iter().sum())
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_fan_out_cancels_its_other_child_runs() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![spreads, second_item_fails]).await;
    let handle = spreads().enqueue(&db).await.unwrap();
    assert!(matches!(soon(handle.result()).await, Err(ClientError::RunFailed { .. })));
    let going_on = "select count(*) from runledger.run_state where state not in ('failed', 'cancelled')";
    eventually(async || scalar::<i64>(&db, going_on).await, |n| *n == 0).await;
    let n_cancelled = "select count(*) from runledger.run_state where state = 'cancelled'";
    assert_eq!(scalar::<i64>(&db, n_cancelled).await, 2, "of the three that were under way");
    no_requests_are_left(&db).await;
    worker.stop().await;
}

#[workflow(max_attempts = 2, backoff = "200ms..200ms")]
async fn fails_after_its_start(wf: &Wf) -> Result<()> {
    wf.start(parent_of_a_sleeper()).await?;
    wf.step("fails", || async { Err::<(), Error>("no".into()) }).max_attempts(1).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn terminally_failed_run_cancels_live_descendants_with_reason() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![fails_after_its_start, parent_of_a_sleeper, child_that_sleeps]).await;
    let handle = fails_after_its_start().enqueue(&db).await.unwrap();
    let child = child_of(&db, handle.id()).await;
    until(&db, handle.id(), |info| info.state == RunState::Failed).await;
    assert_eq!(cancelled(&db, child).await, WHY);
    let grandchildren = format!("select array(select run_id from runledger.run where parent_id = '{child}')");
    for grandchild in scalar::<Vec<Uuid>>(&db, &grandchildren).await {
        assert_eq!(cancelled(&db, grandchild).await, WHY);
    }
    no_requests_are_left(&db).await;
    worker.stop().await;
}

static STARTED: Semaphore = Semaphore::const_new(0);

#[job]
async fn does() -> Result<()> {
    Ok(())
}

#[job]
async fn compensates() -> Result<()> {
    Ok(())
}

/// Fails while a child is live, with a step to compensate.
#[workflow(max_attempts = 1)]
async fn fails_in_a_saga(wf: &Wf) -> Result<()> {
    wf.saga().run(does(), |()| compensates()).await?;
    wf.start(child_that_sleeps()).await?;
    STARTED.acquire().await?.forget();
    Err(Error::terminal("no"))
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_saga_cancels_live_child() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![fails_in_a_saga, does, compensates, child_that_sleeps]).await;
    let handle = fails_in_a_saga().enqueue(&db).await.unwrap();
    let child = child_of(&db, handle.id()).await;
    until(&db, child, |info| info.cause.as_deref() == Some("slept")).await;
    STARTED.add_permits(1);
    until(&db, handle.id(), |info| info.state == RunState::Failed).await;
    assert_eq!(cancelled(&db, child).await, WHY);
    no_requests_are_left(&db).await;
    worker.stop().await;
}

#[job(max_attempts = 1)]
async fn cannot_undo() -> Result<()> {
    Err("it cannot be undone".into())
}

/// Fails while a child is live, with a step whose compensation fails.
#[workflow(max_attempts = 1)]
async fn fails_in_a_saga_for_good(wf: &Wf) -> Result<()> {
    wf.saga().run(does(), |()| cannot_undo()).await?;
    wf.start(child_that_sleeps()).await?;
    Err(Error::terminal("no"))
}

/// Refuses cancels of children, as if the cancelling process had died after the parent.
const REFUSE: &str = "create function refuse() returns trigger language plpgsql as $$ begin
                      if new.run_id in (select run_id from runledger.run where parent_id is not null) then raise 'dead'; end if;
                      return new;
                  end $$;
                  create trigger refuse before insert on runledger.cancel for each row execute function refuse()";

/// The cancelling process dies after the end of the run itself.
#[tokio::test(flavor = "multi_thread")]
async fn cancel_of_run_blocked_in_compensation_reaches_child_after_crash() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, REFUSE).await;
    let worker = worker(&db, jobs![fails_in_a_saga_for_good, does, cannot_undo, child_that_sleeps]).await;
    let handle = fails_in_a_saga_for_good().enqueue(&db).await.unwrap();
    let child = child_of(&db, handle.id()).await;
    until(&db, handle.id(), |info| info.state == RunState::Blocked).await;
    assert!(handle.cancel("leave it").await.is_err(), "nothing is asked of the child");
    assert_eq!(db.run(handle.id()).info().await.unwrap().state, RunState::Failed);
    assert_eq!(scalar::<String>(&db, "select reason from runledger.cancel").await, "leave it");
    execute(&db, "drop trigger refuse on runledger.cancel").await;
    assert_eq!(cancelled(&db, child).await, "cancelled: leave it");
    no_requests_are_left(&db).await;
    worker.stop().await;
}

/// Waits, with a step whose compensation fails.
#[workflow(max_attempts = 1)]
async fn waits_in_a_saga(wf: &Wf) -> Result<()> {
    wf.saga().run(does(), |()| cannot_undo()).await?;
    Ok(wf.signal("go").await?)
}

#[workflow(max_attempts = 1)]
async fn waits_above_a_saga(wf: &Wf) -> Result<()> {
    Ok(wf.start(waits_in_a_saga()).await?.result().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_does_not_wait_for_compensating_or_blocked_descendants() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let jobs = jobs![waits_above_a_saga, waits_in_a_saga, does, cannot_undo];
    let first = worker(&db, jobs).await;
    let handle = waits_above_a_saga().enqueue(&db).await.unwrap();
    let child = child_of(&db, handle.id()).await;
    until(&db, child, |info| info.state == RunState::Waiting).await;
    until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
    first.stop().await;
    soon(handle.cancel("not needed")).await.unwrap();
    assert_eq!(handle.state().await.unwrap(), RunState::Cancelled);
    assert!(db.run(child).info().await.unwrap().compensating, "nobody is there who compensates it");
    let second = worker(&db, jobs).await;
    until(&db, child, |info| info.state == RunState::Blocked).await;
    soon(handle.cancel("not needed")).await.unwrap();
    no_requests_are_left(&db).await;
    second.stop().await;
}

#[workflow(max_attempts = 1)]
async fn fails_at_once(wf: &Wf) -> Result<()> {
    wf.start(child_that_sleeps()).await?;
    Err(Error::terminal("no"))
}

/// The worker dies between the end of a run and the cancels of its children. The request that was
/// committed with that end leads to them.
#[tokio::test(flavor = "multi_thread")]
async fn child_of_failed_run_is_cancelled_after_worker_crash() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, REFUSE).await;
    let first = worker(&db, jobs![fails_at_once, child_that_sleeps]).await;
    let handle = fails_at_once().enqueue(&db).await.unwrap();
    let child = child_of(&db, handle.id()).await;
    until(&db, handle.id(), |info| info.state == RunState::Failed).await;
    first.stop().await;
    let asked = "select reason from runledger.cancel";
    assert_eq!(scalar::<String>(&db, asked).await, "a run above it has failed");
    assert_eq!(db.run(child).info().await.unwrap().state, RunState::Queued);
    execute(&db, "drop trigger refuse on runledger.cancel").await;
    let second = worker(&db, jobs![fails_at_once, child_that_sleeps]).await;
    assert_eq!(cancelled(&db, child).await, WHY);
    no_requests_are_left(&db).await;
    second.stop().await;
}

#[workflow(max_attempts = 1)]
async fn leaves_and_completes(wf: &Wf) -> Result<()> {
    wf.start(child_that_sleeps()).await?;
    Ok(())
}

#[workflow(max_attempts = 1)]
async fn fails_above_one_that_leaves(wf: &Wf) -> Result<()> {
    wf.start(leaves_and_completes()).await?.result().await?;
    Err(Error::terminal("no"))
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_run_cancels_live_grandchild_below_completed_child() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let jobs = jobs![fails_above_one_that_leaves, leaves_and_completes, child_that_sleeps];
    let worker = worker(&db, jobs).await;
    let handle = fails_above_one_that_leaves().enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Failed).await;
    assert_eq!(cancelled(&db, run_of(&db, "child_that_sleeps").await).await, WHY);
    no_requests_are_left(&db).await;
    let alone = leaves_and_completes().enqueue(&db).await.unwrap();
    soon(alone.result()).await.unwrap();
    let left = child_of(&db, alone.id()).await;
    until(&db, left, |info| info.cause.as_deref() == Some("slept")).await;
    assert_eq!(
        scalar::<i64>(&db, "select count(*) from runledger.cancel").await,
        0,
        "who completes leaves it"
    );
    alone.cancel("over").await.unwrap();
    worker.stop().await;
}

static OUTLIVES: Semaphore = Semaphore::const_new(0);
static BLOCKS: tokio::sync::Notify = tokio::sync::Notify::const_new();

#[job]
async fn blocks_its_thread() -> Result<u64> {
    BLOCKS.notify_one();
    tokio::task::block_in_place(|| {
        tokio::runtime::Handle::current()
            .block_on(async { OUTLIVES.acquire().await.map(tokio::sync::SemaphorePermit::forget) })
    })?;
    Ok(7)
}

static MENDED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

#[workflow(max_attempts = 1)]
async fn fails_before_its_child(wf: &Wf) -> Result<u64> {
    let child = wf.start(blocks_its_thread()).await?;
    let step = || async {
        if MENDED.load(std::sync::atomic::Ordering::SeqCst) {
            return Ok(());
        }
        // Waits until the child has started: the parent's failure would cancel a queued child.
        BLOCKS.notified().await;
        Err(Error::terminal("no"))
    };
    wf.step("fails", step).max_attempts(1).await?;
    Ok(child.result().await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn failed_run_is_revived_only_after_descendants_stop() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![fails_before_its_child, blocks_its_thread]).await;
    let handle = fails_before_its_child().enqueue(&db).await.unwrap();
    let child = child_of(&db, handle.id()).await;
    until(&db, child, |info| info.state == RunState::Running).await;
    until(&db, handle.id(), |info| info.state == RunState::Failed).await;
    let loud = handle.revive(RunState::Failed).await.unwrap_err();
    assert!(matches!(loud, ClientError::DescendantsRunning { below, .. } if below == child), "{loud}");
    MENDED.store(true, std::sync::atomic::Ordering::SeqCst);
    OUTLIVES.add_permits(2);
    until(&db, child, |info| info.state.is_terminal()).await;
    let revived = handle.revive(RunState::Failed).await.unwrap();
    assert_eq!(soon(revived.result()).await.unwrap(), 7);
    worker.stop().await;
}

/// Leases all ready runs to a worker of this name that is gone.
const PREDECESSOR: &str = "with gone as (
             insert into runledger.worker (name, version, session_name, lock_incarnation, jobs, queues)
             select 'shop', '1', 'gone', runledger.server_incarnation(), '{}', '{}'
             returning worker_id
         ),
         taken as (delete from runledger.ready returning run_id)
     insert into runledger.lease (run_id, token, worker_id, attempt, crashes, claims, claimed_at)
     select run_id, gen_random_uuid(), worker_id, 1, 0, 1, now() from taken, gone";

#[tokio::test(flavor = "multi_thread")]
async fn worker_reusing_dead_workers_name_starts_despite_blocked_reclaim() {
    let Fixture { db, database } = Fixture::new().await;
    let runs = [ends_at_once().enqueue(&db).await.unwrap(), ends_at_once().enqueue(&db).await.unwrap()];
    execute(&db, PREDECESSOR).await;
    let mut locker = database.connect().await.unwrap();
    sqlx::raw_sql("begin; lock table runledger.ready in share mode").execute(&mut locker).await.unwrap();
    let app = App::new(db.clone()).with(jobs![ends_at_once]).name("shop");
    let worker = soon(app.timings(Timings::FAST).start()).await.unwrap();
    sqlx::raw_sql("rollback").execute(&mut locker).await.unwrap();
    for run in runs {
        soon(run.result()).await.unwrap();
    }
    worker.stop().await;
}
