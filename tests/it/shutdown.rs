//! Behaviour 15: shutdown and drain.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use runledger::prelude::*;
use runledger::{RunState, Timings, Worker};
use runledger_tests::chain::chain;
use runledger_tests::rows::{scalar, soon, until, worker};
use runledger_tests::{Fixture, eventually};
use rustix::process::Signal;
use tokio::sync::Semaphore;

use crate::processes::{FAST, Site, signal};

static GATE: Semaphore = Semaphore::const_new(0);

#[job]
async fn waits_at_the_gate() -> Result<u64> {
    GATE.acquire().await?.forget();
    Ok(7)
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_completes_running_attempt_and_claims_no_new_run() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![waits_at_the_gate]).await;
    let running = waits_at_the_gate().enqueue(&db).await.unwrap();
    until(&db, running.id(), |info| info.state == RunState::Running).await;
    let stop = tokio::spawn(worker.stop());
    eventually(async || db.workers().await.unwrap(), |workers| workers.iter().all(|worker| worker.draining))
        .await;
    let late = waits_at_the_gate().enqueue(&db).await.unwrap();
    GATE.add_permits(1);
    soon(stop).await.unwrap();
    assert_eq!(running.result().await.unwrap(), 7);
    let info = late.info().await.unwrap();
    assert_eq!((info.state, info.attempt), (RunState::Queued, 0));
    assert!(db.workers().await.unwrap().is_empty(), "it signs off");
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_are_listed_in_registration_order() {
    let Fixture { db, database } = Fixture::new().await;
    let mut workers = Vec::new();
    // Worker ids are random: six in a row are in the order of their start once in 720 times.
    for _ in 0..6 {
        let its_own = Db::connect(database.url()).await.unwrap();
        workers.push(worker(&its_own, jobs![waits_at_the_gate]).await);
    }
    let listed: Vec<i64> = db.workers().await.unwrap().iter().map(|worker| worker.worker_id).collect();
    assert_eq!(listed, workers.iter().map(Worker::id).collect::<Vec<_>>());
    for worker in workers {
        soon(worker.stop()).await;
    }
}

static DROPPED: AtomicUsize = AtomicUsize::new(0);

struct CountsItsDrop;

impl Drop for CountsItsDrop {
    fn drop(&mut self) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

#[job(max_attempts = 1)]
async fn never_ends() -> Result<()> {
    let _guard = CountsItsDrop;
    std::future::pending().await
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_requeues_unfinished_run_at_deadline_without_consuming_attempt() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let app = App::new(db.clone()).with(jobs![never_ends]).timings(Timings::FAST);
    let worker = app.drain(Duration::from_millis(50)).start().await.unwrap();
    let handle = never_ends().enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Running).await;
    soon(worker.stop()).await;
    let info = handle.info().await.unwrap();
    assert_eq!((info.state, info.attempt, info.crashes), (RunState::Queued, 0, 0));
    assert_eq!(info.cause.as_deref(), Some("released"));
    assert_eq!(DROPPED.load(Ordering::Relaxed), 1, "its future was dropped");
    assert!(handle.attempts().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_worker_stops_and_leaves_no_run_leased() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![dropped_with_its_worker]).await;
    let handle = dropped_with_its_worker().enqueue(&db).await.unwrap();
    drop(worker);
    eventually(async || db.workers().await.unwrap(), Vec::is_empty).await;
    let state = handle.state().await.unwrap();
    assert!(matches!(state, RunState::Queued | RunState::Completed), "{state}");
}

#[job]
async fn dropped_with_its_worker() -> Result<()> {
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_lets_process_complete_its_run_and_exit_successfully() {
    let site = Site::new().await;
    let mut process = site.worker("polite", FAST).await;
    let handle = chain(5, 80).enqueue(site.db()).await.unwrap();
    site.until_ended(1).await;
    signal(&process, Signal::TERM);
    let status = soon(process.wait()).await.unwrap();
    assert!(status.success(), "{status}");
    let info = handle.info().await.unwrap();
    assert_eq!((info.state, info.attempt, info.crashes), (RunState::Completed, 1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn run_requeued_at_sigterm_deadline_continues_elsewhere_without_repeated_steps() {
    let site = Site::new().await;
    let [heartbeat, suspect, lease, _] = FAST;
    let mut process = site.worker("hasty", [heartbeat, suspect, lease, 1]).await;
    let handle = chain(20, 150).enqueue(site.db()).await.unwrap();
    site.until_ended(3).await;
    signal(&process, Signal::TERM);
    assert!(soon(process.wait()).await.unwrap().success());
    let info = handle.info().await.unwrap();
    assert_eq!((info.state, info.attempt, info.crashes), (RunState::Queued, 0, 0));
    assert_eq!(info.cause.as_deref(), Some("released"));
    let first: Vec<String> = handle.steps().await.unwrap().into_iter().map(|step| step.key).collect();
    assert!(first.len() >= 2, "{first:?}");
    let pid_of_first = site.lines()[0].pid;

    let _next = site.worker("next", FAST).await;
    assert_eq!(soon(handle.result()).await.unwrap(), 20);
    let lines = site.lines();
    let again = lines.iter().filter(|line| line.pid != pid_of_first && first.contains(&line.key)).count();
    assert_eq!(again, 0, "no recorded step ran again");
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_request_stops_other_process_after_its_run_completes() {
    let site = Site::new().await;
    let mut process = site.worker("elsewhere", FAST).await;
    let handle = chain(4, 80).enqueue(site.db()).await.unwrap();
    site.until_ended(1).await;
    let worker_id: i64 = scalar(site.db(), "select worker_id from runledger.worker").await;
    assert!(site.db().drain_worker(worker_id).await.unwrap());
    assert!(soon(process.wait()).await.unwrap().success());
    assert_eq!(handle.result().await.unwrap(), 4);
    assert!(!site.db().drain_worker(worker_id).await.unwrap(), "it is not there any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_worker_can_be_awaited_and_stopped_again() {
    let fixture = Fixture::new().await;
    let mut worker = App::new(fixture.db.clone()).with(jobs![ended_plain]).start().await.unwrap();
    assert!(fixture.db.drain_worker(worker.id()).await.unwrap());
    worker.ended().await;
    worker.ended().await;
    worker.stop().await;
}

#[job]
async fn ended_plain() -> Result<()> {
    Ok(())
}
