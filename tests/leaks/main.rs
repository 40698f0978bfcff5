//! What ten thousand runs leave behind in a worker's process. The only test of its program: what it counts is of the whole process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr, reason = "tests")]

use std::fs::{self, File};
use std::time::Duration;

use runledger::prelude::*;
use runledger::{Timings, enqueue_all};
use runledger_tests::{Fixture, eventually};
use sqlx::PgConnection;
use tokio::runtime::Handle as Runtime;

/// The runs of a round, a quarter of each kind. The first round is for what a process grows to once.
const ROUND: usize = 2_000;
const ROUNDS: usize = 5;

/// What four rounds may add to the memory of the process: half a KiB a run, of which the allocator's own noise takes most.
const GROWTH_KIB: u64 = 4 << 10;

#[job(max_attempts = 1)]
async fn panics(n: usize) -> Result<usize> {
    panic!("on purpose, in run {n}")
}

#[job(max_attempts = 1, timeout = "1ms")]
async fn times_out() -> Result<()> {
    std::future::pending().await
}

/// What it leaves behind ends by itself, a moment after the run.
#[job(max_attempts = 1)]
async fn spawns() -> Result<()> {
    let file = File::open("/proc/self/status")?;
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(5)).await;
        drop(file);
    });
    std::thread::spawn(|| std::thread::sleep(Duration::from_millis(1)));
    Ok(())
}

#[workflow]
async fn fails_in_a_step(wf: &Wf) -> Result<()> {
    wf.step("recorded", || async { Ok::<_, Error>(1) }).await?;
    Ok(wf.step("failed", || async { Err::<(), _>(Error::terminal("on purpose")) }).await?)
}

/// What a process has.
#[derive(Clone, Copy, Debug)]
struct Gauges {
    tasks: usize,
    threads: usize,
    files: usize,
    resident_kib: u64,
}

impl Gauges {
    fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let number = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        Self {
            tasks: Runtime::current().metrics().num_alive_tasks(),
            threads: usize::try_from(number("Threads:")).unwrap(),
            files: fs::read_dir("/proc/self/fd").unwrap().count(),
            // Without the pages of the program itself, which come and go with the cache of files.
            resident_kib: number("RssAnon:"),
        }
    }

    /// Whether there is no more than at another time: connections of pools and threads for blocking work come and go, runs would be thousands.
    fn is_within(&self, other: &Self) -> bool {
        self.tasks <= other.tasks + 20 && self.threads <= other.threads + 20 && self.files <= other.files + 20
    }
}

/// The runs of a round, until they have ended. The pool is the worker's: who asks there waits for a connection, on a busy machine longer than the pool lets wait.
async fn round(db: &Db, asking: &mut PgConnection, n_rounds: usize) {
    for _ in 0..4 {
        let quarter = ROUND / 4 / 4;
        enqueue_all((0..quarter).map(panics), db).await.unwrap();
        enqueue_all((0..quarter).map(|_| times_out()), db).await.unwrap();
        enqueue_all((0..quarter).map(|_| spawns()), db).await.unwrap();
        enqueue_all((0..quarter).map(|_| fails_in_a_step()), db).await.unwrap();
    }
    let ended = "select count(*) from runledger.outcome";
    let n_runs = i64::try_from(ROUND * n_rounds).unwrap();
    let asking = tokio::sync::Mutex::new(asking);
    let count =
        async || sqlx::query_scalar::<_, i64>(ended).fetch_one(&mut **asking.lock().await).await.unwrap();
    eventually(count, |n_ended| *n_ended == n_runs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_runs_that_panic_time_out_spawn_and_fail_leave_nothing_behind() {
    // What the bodies say would be kept by whoever captures the output of tests.
    std::panic::set_hook(Box::new(|panic| {
        let said = panic.to_string();
        if !said.contains("on purpose") {
            eprintln!("{said}");
        }
    }));
    let Fixture { db, database } = Fixture::new().await;
    let mut asking = database.connect().await.unwrap();
    let app = App::new(db.clone()).with(jobs![panics, times_out, spawns, fails_in_a_step]);
    let worker = app.timings(Timings::FAST).start().await.unwrap();
    round(&db, &mut asking, 1).await;
    let first = Gauges::now();
    for n in 2..=ROUNDS {
        round(&db, &mut asking, n).await;
        eventually(async || Gauges::now(), |gauges| gauges.is_within(&first)).await;
    }
    let last = Gauges::now();
    assert!(last.resident_kib <= first.resident_kib + GROWTH_KIB, "{first:?}, and then {last:?}");
    worker.stop().await;
}
