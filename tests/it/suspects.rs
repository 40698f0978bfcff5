//! Crashing processes, and the runs that the crashes count against.

use std::process::Stdio;
use std::time::{Duration, Instant};

use runledger::prelude::*;
use runledger::{Call, FailureKind, Job, Payload, RunState, Timings, jobs};
use runledger_tests::rows::{random, scalar, until};
use runledger_tests::suspects::{APART, exits, exits_late, takes_a_while};
use runledger_tests::{Fixture, eventually};
use tokio::process::{Child, Command};
use uuid::Uuid;

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

/// Restarts the worker whenever its process ends, until no live run is left. Returns how many
/// processes ended.
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

async fn assert_completed<T: Payload>(handles: &[runledger::RunHandle<T>]) {
    for handle in handles {
        let info = handle.info().await.unwrap();
        assert_eq!(info.state, RunState::Completed, "{info:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn crashing_run_is_blocked_alone_among_59_long_runs() {
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
    // An innocent run that is in all three trials by chance excuses the guilty one once.
    assert!((5..=6).contains(&n_deaths), "it took {n_deaths} processes with it");
    let blocked = "select array(select run_id from runledger.run_state where state = 'blocked')";
    let blocked: Vec<Uuid> = scalar(db, blocked).await;
    assert_completed(&others).await;
    assert_eq!(blocked.len(), 1);
    let info = db.run(blocked[0]).info().await.unwrap();
    let error = info.error.unwrap();
    assert_eq!((info.job.as_str(), error.kind, info.attempt), ("exits", FailureKind::Crash, 0));
    let reason = error.to_string();
    assert!(
        reason.contains(&format!("{n_deaths} times"))
            && reason.contains("the last 3 times during trials of this run"),
        "{reason}"
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn twenty_consecutive_kills_block_no_run() {
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
        tokio::time::sleep(Duration::from_millis(random(600))).await;
        process.kill().await.unwrap();
    }
    let blocked = "select count(*) from runledger.run_state where state = 'blocked'";
    assert_eq!(supervise(&fixture, &[]).await, 0);
    assert_eq!(scalar::<i64>(db, blocked).await, 0);
    assert_completed(&handles).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lone_crashing_run_ends_at_most_five_processes() {
    let fixture = Fixture::new().await;
    let guilty = exits().enqueue(&fixture.db).await.unwrap();
    let n_deaths = supervise(&fixture, &[]).await;
    assert!((3..=5).contains(&n_deaths), "{n_deaths}");
    let info = guilty.info().await.unwrap();
    assert_eq!((info.state, info.crashes), (RunState::Blocked, 5));
}

/// Checks that a guilty run does not block a job of 25 s, in the same worker or in another one of
/// its process.
async fn assert_blocks_no_other<J: Job>(guilty: Call<J>, how: &[&str]) {
    let fixture = Fixture::new().await;
    let guilty = guilty.enqueue(&fixture.db).await.unwrap();
    let innocent = [takes_a_while(25_000).enqueue(&fixture.db).await.unwrap()];
    let n_deaths = supervise(&fixture, how).await;
    assert_eq!(n_deaths, 6);
    assert_completed(&[guilty]).await;
    assert_completed(&innocent).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn late_crashing_run_that_progresses_blocks_no_other_run() {
    // The guilty run is older than 10 s when it ends its process, so it may run during each trial
    // of the other run. After a sleep it is no suspect.
    tokio::join!(
        assert_blocks_no_other(exits_late(6, false), &[]),
        assert_blocks_no_other(exits_late(6, true), &[]),
        assert_blocks_no_other(exits_late(6, false).queue(APART), &[APART]),
        assert_blocks_no_other(exits_late(6, true).queue(APART), &[APART]),
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn crashing_run_is_blocked_beside_long_run() {
    let fixture = Fixture::new().await;
    let guilty = exits().enqueue(&fixture.db).await.unwrap();
    let innocent = [takes_a_while(60_000).enqueue(&fixture.db).await.unwrap()];
    let n_deaths = supervise(&fixture, &[]).await;
    // The trials of the long run grow until they show that it survives longer.
    assert!((5..=7).contains(&n_deaths), "{n_deaths}");
    assert_eq!(guilty.info().await.unwrap().state, RunState::Blocked);
    assert_completed(&innocent).await;
}

/// The row of the other run after a crash.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// The dead worker still has its lease.
    Leased,
    /// Another worker of the process still has its lease.
    LeasedBySibling,
    /// It is queued again.
    Queued,
}

/// Whether the suspect is on trial in each process that dies. An operator killed the third.
const ON_TRIAL: [bool; 4] = [true, true, false, true];

/// Makes a suspect die for the fifth time, three times of them on trial. `ages` are the ages of the
/// other run in those three crashes, in seconds. Returns the suspect's state and its number of
/// crashes.
async fn after_three_trials(ages: [Option<i32>; 3], place: Place) -> (RunState, i32) {
    let fixture = Fixture::new().await;
    let db = &fixture.db;
    let suspect = exits().enqueue(db).await.unwrap().id();
    let other = takes_a_while(1).enqueue(db).await.unwrap().id();
    let dead = "insert into runledger.worker (name, version, session_name, jobs, queues, heartbeat_at, state, died_at, died_why, trial)
        select 'gone', '1', 'process ' || $1, '{}', '{}', now(), 'dead', now(), 'its lease was over', trial
        from unnest(array[$2, null::uuid]) with ordinality as worker (trial, place)
        order by place
        returning worker_id";
    let died = async |run_id: Uuid, worker_id: i64, n: i32, age: i32| {
        let died = r#"insert into runledger.attempt (run_id, claims, attempt, worker_id, started_at, error)
            values ($1, $2, 1, $3, now() - $4 * interval '1 second', '{"kind":"crash","message":"died"}')"#;
        let died = sqlx::query(died).bind(run_id).bind(n).bind(worker_id).bind(age);
        died.execute(db.pool()).await.unwrap();
    };
    let held = async |run_id: Uuid, worker_id: i64, crashes: i32, age: i32| {
        let held = "with taken as (delete from runledger.ready where run_id = $1)
            insert into runledger.lease (run_id, token, worker_id, attempt, crashes, claims, claimed_at)
            values ($1, gen_random_uuid(), $2, 1, $3, 4, now() - $4 * interval '1 second')";
        let held = sqlx::query(held).bind(run_id).bind(worker_id).bind(crashes).bind(age);
        held.execute(db.pool()).await.unwrap();
    };
    let mut ages = ages.into_iter();
    for (is_trial, n) in ON_TRIAL.into_iter().zip(1..) {
        let dead = sqlx::query_scalar(dead).bind(n).bind(is_trial.then_some(suspect));
        let dead: Vec<i64> = dead.fetch_all(db.pool()).await.unwrap();
        let [worker, sibling] = dead[..] else { panic!("{dead:?}") };
        let age = if is_trial { ages.next().flatten() } else { None };
        let is_last = n == 4;
        if let Some(age) = age {
            match place {
                Place::Leased if is_last => held(other, worker, 1, age).await,
                Place::LeasedBySibling if is_last => held(other, sibling, 1, age).await,
                Place::Leased | Place::LeasedBySibling | Place::Queued => died(other, sibling, n, age).await,
            }
        }
        if is_last { held(suspect, worker, 4, 1).await } else { died(suspect, worker, n, 1).await }
    }
    let worker = App::new(db.clone()).with(jobs![exits_late]).timings(Timings::FAST).start().await.unwrap();
    let info = until(db, suspect, |info| info.state != RunState::Running).await;
    worker.stop().await;
    (info.state, info.crashes)
}

#[tokio::test(flavor = "multi_thread")]
async fn suspect_is_blocked_unless_one_other_run_may_explain_crashes() {
    use Place::{Leased, LeasedBySibling, Queued};
    for place in [Leased, LeasedBySibling, Queued] {
        let excused = after_three_trials([Some(15), Some(14), Some(16)], place).await;
        assert_eq!(excused, (RunState::Queued, 5), "{place:?}");
        for ages in [
            [None, Some(15), Some(15)],
            [Some(15), None, Some(15)],
            [Some(15), Some(15), None],
            // It lived longer than in an earlier crash.
            [Some(15), Some(40), Some(40)],
            [Some(40), Some(15), Some(40)],
        ] {
            assert_eq!(after_three_trials(ages, place).await, (RunState::Blocked, 5), "{ages:?} {place:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sibling_worker_run_becomes_suspect_after_trial_crash_despite_progress() {
    let fixture = Fixture::new().await;
    let db = &fixture.db;
    let run_id = takes_a_while(1).enqueue(db).await.unwrap().id();
    let dead = "with dead as (
            insert into runledger.worker (name, version, session_name, jobs, queues, heartbeat_at, state, died_at, died_why, trial)
            select 'gone', '1', 'process', '{}', '{}', now(), 'dead', now(), 'its lease was over', trial
            from unnest(array[gen_random_uuid(), null::uuid]) as trial
            returning worker_id, trial
        ),
        taken as (delete from runledger.ready where run_id = $1),
        progressed as (
            insert into runledger.step (run_id, key, ordinal, fingerprint, output, seen_len, claims) values ($1, 'a', 0, 0, '1', 0, 2)
        )
        insert into runledger.lease (run_id, token, worker_id, attempt, crashes, claims, claimed_at)
        select $1, gen_random_uuid(), worker_id, 1, 1, 2, now() from dead where trial is null";
    sqlx::query(dead).bind(run_id).execute(db.pool()).await.unwrap();
    let worker = App::new(db.clone()).with(jobs![exits_late]).timings(Timings::FAST).start().await.unwrap();
    let info = until(db, run_id, |info| info.state != RunState::Running).await;
    worker.stop().await;
    assert_eq!((info.state, info.crashes), (RunState::Queued, 2));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn crashing_run_blocks_no_run_of_other_worker_in_process() {
    let fixture = Fixture::new().await;
    let guilty = exits().queue(APART).enqueue(&fixture.db).await.unwrap();
    let innocent = [takes_a_while(6_000).enqueue(&fixture.db).await.unwrap()];
    let n_deaths = supervise(&fixture, &[APART]).await;
    assert!(n_deaths <= 5, "it took {n_deaths} processes with it");
    assert_eq!(guilty.info().await.unwrap().state, RunState::Blocked);
    assert_completed(&innocent).await;
}

/// The orderly progress of a run between its early crashes and its last two.
#[derive(Clone, Copy, Debug)]
enum InOrder {
    Failure,
    Step,
}

async fn assert_trial_ends_before_a_long_run(in_order: InOrder) {
    let fixture = Fixture::new().await;
    let db = &fixture.db;
    let run_id = takes_a_while(20_000).enqueue(db).await.unwrap().id();
    let history = "with dead as (
            insert into runledger.worker (name, version, session_name, jobs, queues, heartbeat_at, state, died_at, died_why)
            values ('gone', '1', 'process', '{}', '{}', now(), 'dead', now() - interval '1 day', 'its lease was over')
            returning worker_id
        ),
        ended as (
            insert into runledger.attempt (run_id, claims, attempt, worker_id, started_at, ended_at, error)
            select $1, claims, claims, worker_id, now() - interval '2 days', now(), '{\"kind\":\"crash\",\"message\":\"died\"}'
            from dead, generate_series(1, 23) as claims
            where claims <> 21
        )
        update runledger.ready set crashes = 2, claims = 23, attempt = 1 where run_id = $1";
    sqlx::query(history).bind(run_id).execute(db.pool()).await.unwrap();
    let in_order = match in_order {
        InOrder::Failure => {
            "insert into runledger.attempt (run_id, claims, attempt, worker_id, started_at, ended_at, error)
             values ($1, 21, 21, 0, now(), now(), '{\"kind\":\"error\",\"message\":\"failed\"}')"
        }
        InOrder::Step => {
            "insert into runledger.step (run_id, key, ordinal, fingerprint, output, seen_len, claims) values ($1, 'a', 0, 0, '1', 0, 21)"
        }
    };
    sqlx::query(in_order).bind(run_id).execute(db.pool()).await.unwrap();
    let worker =
        App::new(db.clone()).with(jobs![takes_a_while]).timings(Timings::FAST).start().await.unwrap();
    let n_trials =
        async || scalar::<i64>(db, "select count(*) from runledger.worker where trial is not null").await;
    eventually(n_trials, |n| *n == 1).await;
    eventually(n_trials, |n| *n == 0).await;
    assert_eq!(db.run(run_id).info().await.unwrap().state, RunState::Running, "{in_order}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn trial_of_run_that_progressed_after_crashes_ends_before_run() {
    tokio::join!(
        assert_trial_ends_before_a_long_run(InOrder::Failure),
        assert_trial_ends_before_a_long_run(InOrder::Step)
    );
}
