//! Cancels of a run and its descendants, with interruptions.

use runledger::prelude::*;
use runledger::{Cancelled, RunHandle, RunState};
use runledger_tests::proxy::{Fault, Proxy};
use runledger_tests::rows::{LONG, execute, scalar, soon, until, worker};
use runledger_tests::{Fixture, eventually};
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::children::{
    child_of, child_that_sleeps, grandparent, parent_of_a_sleeper, works_beside_its_child,
};
use crate::locked_runs::waits_for_ping;

#[job]
async fn runs_for_ever() -> Result<()> {
    std::future::pending().await
}

/// Returns a run, its child and its grandchild. The first two wait and the last one sleeps.
async fn resting_tree(db: &Db) -> (RunHandle<String>, Uuid, Uuid) {
    let handle = grandparent().enqueue(db).await.unwrap();
    let child = child_of(db, handle.id()).await;
    let grandchild = child_of(db, child).await;
    for run_id in [handle.id(), child] {
        until(db, run_id, |info| info.state == RunState::Waiting).await;
    }
    until(db, grandchild, |info| info.cause.as_deref() == Some("slept")).await;
    (handle, child, grandchild)
}

/// Cancels a tree, and drops the future before it has cancelled the descendants.
async fn cancel_and_drop_halfway(fixture: &Fixture, run_id: Uuid) {
    let proxy = Proxy::start(fixture.database.url()).await.unwrap();
    let there = Db::connect(proxy.url()).await.unwrap();
    proxy.arm("-- cancel_below:", Fault::Strand);
    let cancel =
        tokio::spawn(
            async move { RunHandle::attach(grandparent, &there, run_id).cancel("half of it").await },
        );
    until(&fixture.db, run_id, |info| info.state == RunState::Cancelled).await;
    cancel.abort();
    assert!(cancel.await.unwrap_err().is_cancelled());
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_cancel_is_finished_by_repeating_it() {
    let fixture = Fixture::new().await;
    let db = &fixture.db;
    let worker = worker(db, jobs![grandparent, parent_of_a_sleeper, child_that_sleeps]).await;
    let (handle, child, grandchild) = resting_tree(db).await;
    worker.stop().await;
    cancel_and_drop_halfway(&fixture, handle.id()).await;
    assert_eq!(db.run(child).info().await.unwrap().state, RunState::Waiting);
    let again = handle.cancel("all of it").await.unwrap();
    assert_eq!(again, Cancelled::AlreadyEnded(RunState::Cancelled));
    for run_id in [child, grandchild] {
        let info = db.run(run_id).info().await.unwrap();
        assert_eq!(info.state, RunState::Cancelled);
        let reason = info.error.unwrap().to_string();
        assert!(reason.contains("half of it"), "the first reason stands: {reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_cancel_is_finished_by_worker() {
    let fixture = Fixture::new().await;
    let db = &fixture.db;
    let worker = worker(db, jobs![grandparent, parent_of_a_sleeper, child_that_sleeps]).await;
    let (handle, child, grandchild) = resting_tree(db).await;
    cancel_and_drop_halfway(&fixture, handle.id()).await;
    for run_id in [child, grandchild] {
        until(db, run_id, |info| info.state == RunState::Cancelled).await;
    }
    let requests = async || scalar::<i64>(db, "select count(*) from runledger.cancel").await;
    eventually(requests, |n| *n == 0).await;
    worker.stop().await;
}

#[workflow]
async fn leaves_a_sleeper(wf: &Wf) -> Result<()> {
    wf.start(child_that_sleeps()).await?;
    Ok(())
}

#[workflow]
async fn leaves_a_run_that_leaves_a_sleeper(wf: &Wf) -> Result<()> {
    wf.start(leaves_a_sleeper()).await?.result().await?;
    wf.sleep(LONG * 60).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_passes_through_completed_child_to_grandchild() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let jobs = jobs![leaves_a_run_that_leaves_a_sleeper, leaves_a_sleeper, child_that_sleeps];
    let worker = worker(&db, jobs).await;
    let handle = leaves_a_run_that_leaves_a_sleeper().enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.cause.as_deref() == Some("slept")).await;
    let child = child_of(&db, handle.id()).await;
    let grandchild = child_of(&db, child).await;
    until(&db, grandchild, |info| info.cause.as_deref() == Some("slept")).await;
    assert_eq!(handle.cancel("all of it").await.unwrap(), Cancelled::Now);
    assert_eq!(db.run(child).info().await.unwrap().state, RunState::Completed);
    until(&db, grandchild, |info| info.state == RunState::Cancelled).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_of_completed_run_keeps_outcome_and_cancels_live_child() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker =
        worker(&db, jobs![leaves_a_run_that_leaves_a_sleeper, leaves_a_sleeper, child_that_sleeps]).await;
    let handle = leaves_a_sleeper().enqueue(&db).await.unwrap();
    soon(handle.result()).await.unwrap();
    let child = child_of(&db, handle.id()).await;
    until(&db, child, |info| info.cause.as_deref() == Some("slept")).await;
    let answer = handle.cancel("the rest").await.unwrap();
    assert_eq!(answer, Cancelled::AlreadyEnded(RunState::Completed));
    assert_eq!(handle.state().await.unwrap(), RunState::Completed);
    until(&db, child, |info| info.state == RunState::Cancelled).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_request_unseen_by_dead_worker_reaches_run_and_child() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![works_beside_its_child, child_that_sleeps]).await;
    let handle = works_beside_its_child().enqueue(&db).await.unwrap();
    let child = child_of(&db, handle.id()).await;
    until(&db, child, |info| info.cause.as_deref() == Some("slept")).await;
    // The worker first learns that it is dead, then of the request. It continues with another id.
    let die = format!(
        "begin;
         update runledger.worker set state = 'dead', died_at = now(), died_why = 'test';
         insert into runledger.cancel (run_id, reason) values ('{}', 'too late');
         commit",
        handle.id()
    );
    execute(&db, &die).await;
    for run_id in [handle.id(), child] {
        let info = until(&db, run_id, |info| info.state.is_terminal()).await;
        assert_eq!(info.state, RunState::Cancelled);
        assert!(info.error.unwrap().to_string().contains("too late"));
    }
    worker.stop().await;
}

static START_GATE: Semaphore = Semaphore::const_new(0);

#[workflow]
async fn starts_a_child_late(wf: &Wf) -> Result<()> {
    let gate = wf.step("gate", || async {
        START_GATE.acquire().await?.forget();
        Ok::<(), Error>(())
    });
    gate.await?;
    wf.start(child_that_sleeps()).await?;
    wf.sleep(LONG * 60).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn run_with_requested_cancel_starts_no_child() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![starts_a_child_late, child_that_sleeps]).await;
    let handle = starts_a_child_late().enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Running).await;
    // Sent without a notification: the child starts before the heartbeat that would report the
    // request.
    let request = format!("insert into runledger.cancel (run_id) values ('{}')", handle.id());
    execute(&db, &request).await;
    START_GATE.add_permits(1);
    until(&db, handle.id(), |info| info.state == RunState::Cancelled).await;
    let n_runs: i64 = scalar(&db, "select count(*) from runledger.run").await;
    assert_eq!(n_runs, 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missed_cancel_request_is_carried_out_while_run_sleeps() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![child_that_sleeps]).await;
    let handle = child_that_sleeps().enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.cause.as_deref() == Some("slept")).await;
    let request =
        format!("insert into runledger.cancel (run_id, reason) values ('{}', 'missed')", handle.id());
    execute(&db, &request).await;
    let info = until(&db, handle.id(), |info| info.state == RunState::Cancelled).await;
    assert!(info.error.unwrap().to_string().contains("missed"));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_worker_is_detected_while_many_runs_are_being_cancelled() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![child_that_sleeps]).await;
    // One heartbeat finds both: a run that ended before its descendants were cancelled, and a
    // worker whose lock is free.
    let scene = "begin;
         insert into runledger.run (run_id, job, tenant, queue, priority, input, parent_id, start_at)
         select md5(n::text)::uuid, 'child_that_sleeps', '', 'default', 0, '{}', case when n > 0 then md5('0')::uuid end, now()
         from generate_series(0, 5000) n;
         insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
         select md5(n::text)::uuid, 'default', 'child_that_sleeps', 0, now() + interval '1 hour', 'slept', 0, 0, 1
         from generate_series(0, 5000) n;
         insert into runledger.cancel (run_id) values (md5('0')::uuid);
         insert into runledger.worker (name, version, session_name, jobs, queues, heartbeat_at, lock_incarnation)
         values ('dead', '0', 'dead', '{}', '{}', now() - interval '3 seconds', runledger.server_incarnation());
         commit";
    execute(&db, scene).await;
    let is_dead = "select count(*) from runledger.worker where name = 'dead' and state = 'dead'";
    eventually(async || scalar::<i64>(&db, is_dead).await, |n| *n == 1).await;
    let left = "select count(*) from runledger.ready";
    let n_left: i64 = scalar(&db, left).await;
    assert!(n_left > 0, "the burial has waited for all cancels");
    eventually(async || scalar::<i64>(&db, left).await, |n| *n < n_left).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_request_reaches_run_while_maintenance_waits_for_lock() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![runs_for_ever, waits_for_ping]).await;
    let running = runs_for_ever().enqueue(&db).await.unwrap();
    until(&db, running.id(), |info| info.state == RunState::Running).await;
    let waiting = waits_for_ping().enqueue(&db).await.unwrap();
    until(&db, waiting.id(), |info| info.state == RunState::Waiting).await;
    // Maintenance queues a run whose wait is over. It waits here for a transaction that queues the
    // same run.
    let mut lock = db.pool().begin().await.unwrap();
    let queue = "insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
                 select run_id, queue, job, priority, now(), 'woken', 0, 0, 0 from runledger.run where run_id = $1";
    sqlx::query(queue).bind(waiting.id()).execute(&mut *lock).await.unwrap();
    execute(&db, "update runledger.waiting set wake_at = now()").await;
    let waits = "select coalesce(max(query_start::text), '') from pg_stat_activity
                 where wait_event_type = 'Lock' and query like '-- wake_due%' and datname = current_database()";
    let wait = eventually(async || scalar::<String>(&db, waits).await, |wait| !wait.is_empty()).await;
    // Sent without a notification, as if it were lost: the next heartbeat reports the request.
    execute(&db, &format!("insert into runledger.cancel (run_id) values ('{}')", running.id())).await;
    until(&db, running.id(), |info| info.state == RunState::Cancelled).await;
    assert_eq!(scalar::<String>(&db, waits).await, wait, "maintenance has waited all the while");
    lock.rollback().await.unwrap();
    worker.stop().await;
}

#[tokio::test]
async fn cancel_of_run_in_parent_cycle_terminates() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let [first, second] =
        [runs_for_ever().enqueue(&db).await.unwrap(), runs_for_ever().enqueue(&db).await.unwrap()];
    let below_itself = "update runledger.run set parent_id = run_id where run_id = $1";
    sqlx::query(below_itself).bind(first.id()).execute(db.pool()).await.unwrap();
    let below = "update runledger.run set parent_id = $1 where run_id = $2";
    sqlx::query(below).bind(first.id()).bind(second.id()).execute(db.pool()).await.unwrap();
    assert_eq!(soon(first.cancel("no")).await.unwrap(), Cancelled::Now);
    assert_eq!(second.info().await.unwrap().state, RunState::Cancelled);
}
