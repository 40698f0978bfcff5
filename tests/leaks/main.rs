//! Resources that runs leave in a worker's process, and resources that waiting runs hold. Covers
//! ten thousand runs, a million runs, and one run of 100,000 steps. The gauges measure the whole
//! process, so the tests run one at a time.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr, reason = "tests")]

use std::fs::{self, File};
use std::time::Duration;

use runledger::prelude::*;
use runledger::{Timings, enqueue_all};
use runledger_tests::{Fixture, eventually};
use sqlx::{AssertSqlSafe, PgConnection};
use tokio::runtime::Handle as Runtime;
use tokio::sync::Mutex;

/// Runs per round, a quarter of each kind. The first round is the warm-up.
const ROUND: usize = 2_000;
const ROUNDS: usize = 5;

/// The allowed growth of memory over four rounds: 0.5 KiB per run, mostly noise of the allocator.
const GROWTH_KIB: u64 = 4 << 10;

#[job(max_attempts = 1)]
async fn panics(n: usize) -> Result<usize> {
    panic!("on purpose, in run {n}")
}

#[job(max_attempts = 1, timeout = "1ms")]
async fn times_out() -> Result<()> {
    std::future::pending().await
}

/// The task and the thread that it leaves end a moment after the run.
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

#[workflow]
async fn sleeps(wf: &Wf) -> Result<()> {
    Ok(wf.sleep(Duration::from_secs(3600)).await?)
}

#[workflow]
async fn waits_for_a_signal(wf: &Wf) -> Result<()> {
    Ok(wf.signal("never").await?)
}

#[workflow]
async fn waits_for_a_child(wf: &Wf) -> Result<()> {
    Ok(wf.start(sleeps()).await?.result().await?)
}

const ENDED: &str = "select count(*) from runledger.outcome";

/// The runs that have left their worker. A run that only sleeps is in `ready`.
const OUT_OF_WORKERS: &str = "select (select count(*) from runledger.waiting) + (select count(*) from runledger.ready where cause = 'slept')";

/// The running test holds this lock.
static ALONE: Mutex<()> = Mutex::const_new(());

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
            // Excludes the program's own pages, which come and go with the page cache.
            resident_kib: number("RssAnon:"),
        }
    }

    /// Whether nothing has leaked. Pool connections and blocking threads vary by a few, leaked runs
    /// would be thousands.
    fn is_within(&self, other: &Self) -> bool {
        self.tasks <= other.tasks + 20 && self.threads <= other.threads + 20 && self.files <= other.files + 20
    }
}

/// Runs one round to its end. Counts on a separate connection, because the worker's pool may time
/// out on a busy machine.
async fn round(db: &Db, asking: &mut PgConnection, n_rounds: usize) {
    for _ in 0..4 {
        let quarter = ROUND / 4 / 4;
        enqueue_all((0..quarter).map(panics), db).await.unwrap();
        enqueue_all((0..quarter).map(|_| times_out()), db).await.unwrap();
        enqueue_all((0..quarter).map(|_| spawns()), db).await.unwrap();
        enqueue_all((0..quarter).map(|_| fails_in_a_step()), db).await.unwrap();
    }
    let n_runs = i64::try_from(ROUND * n_rounds).unwrap();
    counts(asking, ENDED, n_runs).await;
}

/// Waits until a query counts `n_runs`.
async fn counts(asking: &mut PgConnection, counted: &'static str, n_runs: i64) {
    let asking = Mutex::new(asking);
    let count =
        async || sqlx::query_scalar::<_, i64>(counted).fetch_one(&mut **asking.lock().await).await.unwrap();
    eventually(count, |n_counted| *n_counted == n_runs).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn ten_thousand_panicking_timed_out_spawning_failing_runs_leak_nothing() {
    let _alone = ALONE.lock().await;
    // Drops the bodies' panic messages, which a harness that captures output would keep in memory.
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

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn ten_thousand_suspended_runs_use_no_slot_connection_or_memory() {
    let _alone = ALONE.lock().await;
    let Fixture { db, database } = Fixture::new().await;
    let mut asking = database.connect().await.unwrap();
    let app =
        App::new(db.clone()).with(jobs![sleeps, waits_for_a_signal, waits_for_a_child, fails_in_a_step]);
    let worker = app.concurrency(64).start().await.unwrap();
    let (part, mut first) = (ROUND / 4, None);
    for n in 1..=ROUNDS {
        enqueue_all((0..part).map(|_| sleeps()), &db).await.unwrap();
        enqueue_all((0..part).map(|_| waits_for_a_signal()), &db).await.unwrap();
        enqueue_all((0..part).map(|_| waits_for_a_child()), &db).await.unwrap();
        // Each run of the last kind has a child.
        counts(&mut asking, OUT_OF_WORKERS, i64::try_from(4 * part * n).unwrap()).await;
        let first = *first.get_or_insert_with(Gauges::now);
        eventually(async || Gauges::now(), |gauges| gauges.is_within(&first)).await;
    }
    let (first, last) = (first.unwrap(), Gauges::now());
    assert!(last.resident_kib <= first.resident_kib + GROWTH_KIB, "{first:?}, and then {last:?}");
    // Far more runs wait than there are slots, and another run still gets one.
    let other = fails_in_a_step().enqueue(&db).await.unwrap();
    other.result().await.unwrap_err();
    worker.stop().await;
}

/// Copies a sleeping run to a million, without the engine.
const A_MILLION: &str = "
    alter table runledger.run set (autovacuum_enabled = off);
    alter table runledger.ready set (autovacuum_enabled = off);
    alter table runledger.step set (autovacuum_enabled = off);
    create table template as select run_id from runledger.ready where cause = 'slept';
    create table sleeper as select gen_random_uuid() as run_id from generate_series(1, 999999);
    insert into runledger.run (run_id, job, tenant, queue, priority, input, start_at)
        select sleeper.run_id, job, tenant, queue, priority, input, start_at
        from sleeper, template join runledger.run using (run_id);
    insert into runledger.step (run_id, key, ordinal, fingerprint, output, seen_len, seen, claims)
        select sleeper.run_id, key, ordinal, fingerprint, output, seen_len, seen, claims
        from sleeper, template join runledger.step using (run_id);
    insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
        select sleeper.run_id, queue, job, priority, ready_at + random() * interval '1 hour', cause, attempt, crashes, claims
        from sleeper, template join runledger.ready using (run_id)";

/// Makes 100 of them wake now.
const WAKE_SOME: &str = "
    create table woken as select run_id from sleeper limit 100;
    update runledger.step set output = to_json((extract(epoch from now()) * 1e6)::int8) from woken where woken.run_id = step.run_id;
    update runledger.ready set ready_at = now() from woken where woken.run_id = ready.run_id";

async fn execute(asking: &mut PgConnection, statements: &'static str) {
    sqlx::raw_sql(statements).execute(asking).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn million_sleeping_runs_cost_only_table_rows() {
    let _alone = ALONE.lock().await;
    let Fixture { db, database } = Fixture::new().await;
    let mut asking = database.connect().await.unwrap();
    let app = || App::new(db.clone()).with(jobs![sleeps, fails_in_a_step]).concurrency(64);
    let worker = app().start().await.unwrap();
    enqueue_all((0..ROUND).map(|_| fails_in_a_step()), &db).await.unwrap();
    enqueue_all([sleeps()], &db).await.unwrap();
    counts(&mut asking, OUT_OF_WORKERS, 1).await;
    counts(&mut asking, ENDED, ROUND.try_into().unwrap()).await;
    let first = Gauges::now();

    execute(&mut asking, A_MILLION).await;
    counts(&mut asking, OUT_OF_WORKERS, 1_000_000).await;
    // Other runs use the slots, and a new worker holds as little of the sleepers as the first one.
    let other = app().start().await.unwrap();
    enqueue_all((0..ROUND).map(|_| fails_in_a_step()), &db).await.unwrap();
    counts(&mut asking, ENDED, (2 * ROUND).try_into().unwrap()).await;
    other.stop().await;
    let last = eventually(async || Gauges::now(), |gauges| gauges.is_within(&first)).await;
    assert!(last.resident_kib <= first.resident_kib + GROWTH_KIB, "{first:?}, and then {last:?}");
    counts(&mut asking, "select count(*) from runledger.lease", 0).await;

    execute(&mut asking, WAKE_SOME).await;
    counts(&mut asking, ENDED, (2 * ROUND + 100).try_into().unwrap()).await;
    counts(&mut asking, OUT_OF_WORKERS, 1_000_000 - 100).await;
    worker.stop().await;
    // Frees hundreds of megabytes.
    execute(&mut asking, "truncate runledger.run, runledger.ready, runledger.step, sleeper").await;
}

/// A loop of `n` steps in slices of a thousand.
#[workflow]
async fn long_loop(wf: &Wf, from: u32, n: u32) -> Result<u32> {
    let end = n.min(from + 1_000);
    for i in from..end {
        wf.step("add", || async move { Ok::<_, Error>(i) }).await?;
    }
    if end == n {
        return Ok(end);
    }
    wf.continue_as_new(long_loop(end, n)).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn loop_of_100000_steps_keeps_1000_records_and_bounded_memory() {
    let _alone = ALONE.lock().await;
    let Fixture { db, database } = Fixture::new().await;
    let mut asking = database.connect().await.unwrap();
    let worker = App::new(db.clone()).with(jobs![long_loop]).start().await.unwrap();
    assert_eq!(long_loop(0, 10_000).enqueue(&db).await.unwrap().result().await.unwrap(), 10_000);
    let first = Gauges::now();
    let handle = long_loop(0, 100_000).enqueue(&db).await.unwrap();
    let of_run = format!("select count(*) from runledger.step where run_id = '{}'", handle.id());
    let (mut most_steps, mut most_kib) = (0, 0);
    while !handle.state().await.unwrap().is_terminal() {
        let n_steps: i64 =
            sqlx::query_scalar(AssertSqlSafe(of_run.clone())).fetch_one(&mut asking).await.unwrap();
        (most_steps, most_kib) = (n_steps.max(most_steps), Gauges::now().resident_kib.max(most_kib));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(handle.result().await.unwrap(), 100_000);
    assert!((1..=1_000).contains(&most_steps), "{most_steps} steps at a time");
    assert!(most_kib <= first.resident_kib + GROWTH_KIB, "{first:?}, and {most_kib} KiB at most");
    worker.stop().await;
}
