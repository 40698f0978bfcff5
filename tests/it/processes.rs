//! Behaviour 13: killed and paused processes.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::process::Stdio;

use runledger::prelude::*;
use runledger::{RunHandle, RunState};
use runledger_tests::chain::{Line, Log, chain};
use runledger_tests::rows::{scalar, soon};
use runledger_tests::{Fixture, eventually};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

/// Heartbeat, suspect, lease and drain, in milliseconds.
pub const FAST: [u64; 4] = [500, 1200, 4000, 30_000];

pub struct Site {
    pub fixture: Fixture,
    pub log: PathBuf,
}

impl Site {
    pub async fn new() -> Self {
        let fixture = Fixture::new().await;
        let log = std::env::temp_dir().join(format!("runledger-chain-{}", uuid::Uuid::now_v7()));
        Log::open(&log).unwrap();
        Self { fixture, log }
    }

    pub fn db(&self) -> &Db {
        &self.fixture.db
    }

    /// Starts a worker process and waits until it is registered.
    pub async fn worker(&self, name: &str, intervals: [u64; 4]) -> Child {
        let known = self.n_registered(name).await;
        let child = Command::new(env!("CARGO_BIN_EXE_chain_worker"))
            .args([self.fixture.database.url(), &self.log.display().to_string(), name])
            .args(intervals.map(|interval| interval.to_string()))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        eventually(async || self.n_registered(name).await, |now| *now > known).await;
        child
    }

    async fn n_registered(&self, name: &str) -> i64 {
        scalar(self.db(), &format!("select count(*) from runledger.worker where name = '{name}'")).await
    }

    pub fn lines(&self) -> Vec<Line> {
        Log::read(&self.log).unwrap()
    }

    pub async fn until_ended(&self, n_steps: usize) {
        let ended = async || self.lines().iter().filter(|line| line.event == "end").count();
        eventually(ended, |n_ended| *n_ended >= n_steps).await;
    }

    /// Returns the claim number under which each step was recorded.
    async fn claims(&self) -> HashMap<(String, String), i32> {
        let rows: Vec<(String, String, i32)> =
            sqlx::query_as("select run_id::text, key, claims from runledger.step")
                .fetch_all(self.db().pool())
                .await
                .unwrap();
        rows.into_iter().map(|(run_id, key, claims)| ((run_id, key), claims)).collect()
    }

    /// Checks that no other process restarted a step that the first process recorded.
    async fn assert_no_recorded_step_ran_again(&self, first: u32) {
        let claims = self.claims().await;
        let lines = self.lines();
        // A run that the first process never started has its first claim elsewhere.
        let began: HashSet<&str> =
            lines.iter().filter(|line| line.pid == first).map(|line| line.run_id.as_str()).collect();
        let by_others = lines.iter().filter(|line| {
            line.event == "start" && line.pid != first && began.contains(line.run_id.as_str())
        });
        for line in by_others {
            let recorded_by = claims[&(line.run_id.clone(), line.key.clone())];
            assert!(recorded_by > 1, "{line:?} was recorded by process {first} before");
        }
        let (by_first, by_next): (Vec<i32>, Vec<i32>) = claims.values().partition(|claim| **claim == 1);
        assert!(!by_first.is_empty() && !by_next.is_empty(), "the process was stopped too early or too late");
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.log);
    }
}

pub fn signal(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed())).unwrap();
    kill_process(pid, signal).unwrap();
}

const LINKS: u64 = 6;

async fn chains(site: &Site, n_runs: usize) -> Vec<RunHandle<u64>> {
    let mut handles = Vec::new();
    for _ in 0..n_runs {
        handles.push(chain(LINKS, 200).enqueue(site.db()).await.unwrap());
    }
    handles
}

async fn assert_completed_in_one_attempt(handles: &[RunHandle<u64>]) {
    for handle in handles {
        assert_eq!(soon(handle.result()).await.unwrap(), LINKS);
        assert_eq!(handle.info().await.unwrap().attempt, 1, "a crash consumes no attempt");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_killed_process_are_reclaimed_long_before_lease_expires() {
    let site = Site::new().await;
    let ten_minutes = 600_000;
    let intervals = [500, 1200, ten_minutes, 30_000];
    let mut first = site.worker("first", intervals).await;
    let pid = first.id().unwrap();
    let handles = chains(&site, 12).await;
    site.until_ended(15).await;
    first.kill().await.unwrap();
    let _second = site.worker("second", intervals).await;
    assert_completed_in_one_attempt(&handles).await;
    site.assert_no_recorded_step_ran_again(pid).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_process_with_same_name_reclaims_runs_before_suspicion() {
    let site = Site::new().await;
    let patient = [100_000, 200_000, 600_000, 30_000];
    let mut first = site.worker("phoenix", patient).await;
    let pid = first.id().unwrap();
    let handles = chains(&site, 4).await;
    site.until_ended(5).await;
    first.kill().await.unwrap();
    let _second = site.worker("phoenix", patient).await;
    assert_completed_in_one_attempt(&handles).await;
    site.assert_no_recorded_step_ran_again(pid).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_process_loses_lease_and_repeats_no_recorded_step_afterwards() {
    let site = Site::new().await;
    let first = site.worker("first", FAST).await;
    let pid = first.id().unwrap();
    let handles = chains(&site, 12).await;
    site.until_ended(15).await;
    signal(&first, Signal::STOP);
    let second = site.worker("second", FAST).await;
    assert_completed_in_one_attempt(&handles).await;
    let why: String = scalar(site.db(), "select died_why from runledger.worker where name = 'first'").await;
    assert_eq!(why, "its lease was over");
    let stale: HashSet<String> =
        site.lines().into_iter().filter(|line| line.pid == pid).map(|line| line.token).collect();
    let before = site.lines().len();

    signal(&first, Signal::CONT);
    let again = "select count(*) from runledger.worker where name = 'first' and state = 'active'";
    eventually(async || scalar::<i64>(site.db(), again).await, |n_active| *n_active == 1).await;
    drop(second);
    assert_completed_in_one_attempt(&chains(&site, 1).await).await;
    let late = site.lines().split_off(before);
    // If an attempt is paused between the check of its lease and a body, it may start that body.
    // Nothing of the body is recorded.
    let mut stale_starts: HashMap<&str, u32> = HashMap::new();
    for line in late.iter().filter(|line| line.event == "start" && stale.contains(&line.token)) {
        *stale_starts.entry(&line.token).or_default() += 1;
    }
    assert!(stale_starts.values().all(|n_starts| *n_starts == 1), "{stale_starts:?}");
    site.assert_no_recorded_step_ran_again(pid).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repeatedly_killed_process_loses_no_run_or_recorded_step() {
    let site = Site::new().await;
    let handles = chains(&site, 20).await;
    for round in 1..=4 {
        let mut worker = site.worker("mortal", FAST).await;
        site.until_ended(round * 20).await;
        worker.kill().await.unwrap();
    }
    let _last = site.worker("mortal", FAST).await;
    assert_completed_in_one_attempt(&handles).await;
    for handle in &handles {
        assert_eq!(handle.state().await.unwrap(), RunState::Completed);
        assert_eq!(handle.steps().await.unwrap().len(), usize::try_from(LINKS).unwrap());
    }
    let claims = site.claims().await;
    let mut last_start: HashMap<(String, String), String> = HashMap::new();
    for line in site.lines().into_iter().filter(|line| line.event == "start") {
        last_start.insert((line.run_id, line.key), line.token);
    }
    assert_eq!(last_start.len(), claims.len(), "every recorded step was started, and nothing else");
}

#[tokio::test]
async fn killed_worker_is_not_listed_as_live_without_other_workers() {
    let site = Site::new().await;
    let mut worker = site.worker("alone", FAST).await;
    assert_eq!(site.db().workers().await.unwrap().len(), 1);
    // Simulates some seconds of silence. The session lock still shows that the worker lives.
    let long_ago = "update runledger.worker set heartbeat_at = clock_timestamp() - interval '10 seconds'";
    let mut silent = site.fixture.db.pool().begin().await.unwrap();
    sqlx::query(long_ago).execute(&mut *silent).await.unwrap();
    let n_living = "select count(*) from runledger.worker where runledger.is_living(worker)";
    let n: i64 = sqlx::query_scalar(n_living).fetch_one(&mut *silent).await.unwrap();
    assert_eq!(n, 1, "a process that is paused lives");
    silent.rollback().await.unwrap();
    worker.kill().await.unwrap();
    sqlx::query(long_ago).execute(site.db().pool()).await.unwrap();
    eventually(async || site.db().workers().await.unwrap().len(), |n| *n == 0).await;
    chain(3, 1).enqueue(site.db()).await.unwrap();
    let unserved = site.db().unserved().await.unwrap();
    assert_eq!(unserved.iter().map(|found| found.job.as_str()).collect::<Vec<_>>(), ["chain"]);
}
