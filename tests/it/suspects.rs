//! Crashing processes, and the runs that the crashes count against.

use std::process::Stdio;
use std::time::{Duration, Instant};

use runledger::prelude::*;
use runledger::{FailureKind, Job, RunState};
use runledger_tests::rows::{random, scalar};
use runledger_tests::suspects::{APART, exits, exits_late, takes_a_while};
use runledger_tests::{Fixture, eventually};
use tokio::process::{Child, Command};

/// More than the slowest machine needs for a whole test.
const LIMIT: Duration = Duration::from_secs(400);

fn worker(fixture: &Fixture, how: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_suspects_worker"))
        .arg(fixture.database.url())
        .args(how)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

async fn n_open(db: &Db) -> i64 {
    let open = "select count(*) from runledger.run_state where state in ('queued', 'running', 'waiting')";
    scalar(db, open).await
}

/// Restarts the worker whenever its process ends, until no live run is left. Returns how many processes
/// ended.
async fn supervise(fixture: &Fixture, how: &[&str]) -> u32 {
    let (began, mut n_deaths) = (Instant::now(), 0);
    let mut process = worker(fixture, how);
    while n_open(&fixture.db).await > 0 {
        assert!(
            began.elapsed() < LIMIT,
            "{} runs are open after {n_deaths} deaths",
            n_open(&fixture.db).await
        );
        if process.try_wait().unwrap().is_some() {
            n_deaths += 1;
            process = worker(fixture, how);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    n_deaths
}

async fn assert_completed<J: Job>(handles: &[runledger::Handle<J>]) {
    for handle in handles {
        let info = handle.info().await.unwrap();
        assert_eq!(info.state, RunState::Completed, "{info:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn run_that_exits_is_blocked_alone_among_59_long_ones() {
    let fixture = Fixture::new().await;
    let db = &fixture.db;
    let mut others = Vec::new();
    for n in 0..59 {
        others.push(takes_a_while(6_000 + n).enqueue(db).await.unwrap());
        if n == 30 {
            exits().enqueue(db).await.unwrap();
        }
    }
    let n_deaths = supervise(&fixture, &[]).await;
    assert!(n_deaths <= 5, "it took {n_deaths} processes with it");
    let blocked = "select array(select run_id from runledger.run_state where state = 'blocked')";
    let blocked: Vec<uuid::Uuid> = scalar(db, blocked).await;
    assert_completed(&others).await;
    assert_eq!(blocked.len(), 1);
    let info = db.run(blocked[0]).await.unwrap();
    let error = info.error.unwrap();
    assert_eq!((info.job.as_str(), error.kind, info.attempt), ("exits", FailureKind::Crash, 0));
    let reason = error.to_string();
    assert!(
        reason.contains("5 times") && reason.contains("the last 3 times with no other suspect"),
        "{reason}"
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn twenty_kills_in_a_row_block_no_run() {
    let fixture = Fixture::new().await;
    let db = &fixture.db;
    let mut handles = Vec::new();
    for round in 0..20 {
        // A worker of an earlier round may have completed all its runs before the kill.
        for n in 0..5 {
            handles.push(takes_a_while(300 + round + n).enqueue(db).await.unwrap());
        }
        let mut process = worker(&fixture, &[]);
        let held = "select count(*) from runledger.lease join runledger.worker using (worker_id) where worker.state = 'active'";
        eventually(async || scalar::<i64>(db, held).await, |n| *n > 0).await;
        // Kill it at a random moment.
        tokio::time::sleep(Duration::from_millis(random(600))).await;
        process.kill().await.unwrap();
    }
    let blocked = "select count(*) from runledger.run_state where state = 'blocked'";
    assert_eq!(supervise(&fixture, &[]).await, 0);
    assert_eq!(scalar::<i64>(db, blocked).await, 0);
    assert_completed(&handles).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_that_exits_alone_ends_five_processes_at_most() {
    let fixture = Fixture::new().await;
    let guilty = exits().enqueue(&fixture.db).await.unwrap();
    let n_deaths = supervise(&fixture, &[]).await;
    assert!((3..=5).contains(&n_deaths), "{n_deaths}");
    let info = guilty.info().await.unwrap();
    assert_eq!((info.state, info.crashes), (RunState::Blocked, 5));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn run_that_exits_late_after_a_step_in_each_attempt_blocks_no_other() {
    let fixture = Fixture::new().await;
    // Older than 10 s when it ends its process, it may be beside each trial of the other.
    let guilty = exits_late(6).enqueue(&fixture.db).await.unwrap();
    let innocent = [takes_a_while(25_000).enqueue(&fixture.db).await.unwrap()];
    let n_deaths = supervise(&fixture, &[]).await;
    assert_eq!(n_deaths, 6);
    assert_completed(&[guilty]).await;
    assert_completed(&innocent).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn run_that_exits_blocks_no_run_of_another_worker_in_its_process() {
    let fixture = Fixture::new().await;
    let guilty = exits().queue(APART).enqueue(&fixture.db).await.unwrap();
    let innocent = [takes_a_while(6_000).enqueue(&fixture.db).await.unwrap()];
    let n_deaths = supervise(&fixture, &[APART]).await;
    assert!(n_deaths <= 5, "it took {n_deaths} processes with it");
    assert_eq!(guilty.info().await.unwrap().state, RunState::Blocked);
    assert_completed(&innocent).await;
}
