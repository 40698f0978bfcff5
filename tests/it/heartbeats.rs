//! Heartbeats while another session locks their table.

use std::collections::HashSet;
use std::process::Stdio;

use runledger::RunState;
use runledger::prelude::*;
use runledger_tests::proxy::{Mode, Proxy};
use runledger_tests::rows::{execute, scalar, soon, until, worker};
use runledger_tests::suspects::takes_a_while;
use runledger_tests::{Fixture, eventually};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};

#[job]
async fn beats() -> Result<u32> {
    Ok(3)
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_behind_table_lock_occupies_one_backend_and_worker_survives() {
    let Fixture { db, database } = Fixture::new().await;
    let worker = worker(&db, jobs![beats]).await;
    let number = worker.id();
    let mut locker = database.connect().await.unwrap();
    sqlx::raw_sql("begin; lock table runledger.worker").execute(&mut locker).await.unwrap();
    // The session sends a new statement after each aborted heartbeat.
    let mut beats_seen = HashSet::new();
    let waiting = "select query_start::text from pg_stat_activity
                   where datname = current_database() and wait_event_type = 'Lock' and query like '-- heartbeat:%'";
    let seen = async {
        while beats_seen.len() < 5 {
            let waiting: Vec<String> = sqlx::query_scalar(waiting).fetch_all(db.pool()).await.unwrap();
            assert!(waiting.len() <= 1, "{} backends wait for one worker's heartbeat", waiting.len());
            beats_seen.extend(waiting);
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    soon(seen).await;
    sqlx::raw_sql("rollback").execute(&mut locker).await.unwrap();
    let run = beats().enqueue(&db).await.unwrap();
    assert_eq!(soon(run.result()).await.unwrap(), 3);
    assert_eq!(worker.id(), number, "it was not taken for dead");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_survives_heartbeats_slower_than_their_interval() {
    let Fixture { db, database } = Fixture::new().await;
    let mut connection = database.connect().await.unwrap();
    // The interval is 0.5 s (`Timings::FAST`). After 1.2 s of silence a worker is suspect.
    let slow = "create table beats (at timestamptz not null);
                create function slow_beat() returns trigger language plpgsql as $$
                begin
                    perform pg_sleep(0.6);
                    insert into public.beats values (clock_timestamp());
                    return new;
                end $$;
                create trigger slow_beat before update of heartbeat_at on runledger.worker for each row execute function slow_beat()";
    sqlx::raw_sql(slow).execute(&mut connection).await.unwrap();
    let worker = worker(&db, jobs![beats]).await;
    eventually(async || scalar::<i64>(&db, "select count(*) from beats").await, |n| *n >= 4).await;
    let run = beats().enqueue(&db).await.unwrap();
    assert_eq!(soon(run.result()).await.unwrap(), 3);
    let numbers = "select array(select worker_id from runledger.worker where state <> 'dead')";
    assert_eq!(scalar::<Vec<i64>>(&db, numbers).await, [worker.id()]);
    worker.stop().await;
}

/// The table was never analysed. Without the engine's settings, the planner expects that a third of
/// the waits is due, and reads the whole table.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_probes_wake_index_of_waiting_runs() {
    let Fixture { db, .. } = Fixture::new().await;
    let later = "insert into runledger.waiting (run_id, state, wait_any, wait_all, wait_signals, wake_at, attempt, crashes, claims, since)
                 select gen_random_uuid(), 'waiting', '{}', '{}', '{}', now() + interval '1 day', 0, 0, 0, now()
                 from generate_series(1, 20000)";
    for statement in ["alter table runledger.waiting set (autovacuum_enabled = off)", later] {
        execute(&db, statement).await;
    }
    let worker = worker(&db, jobs![beats]).await;
    let n_probes = "select idx_scan from pg_stat_user_indexes where indexrelname = 'waiting_wake'";
    eventually(async || scalar::<i64>(&db, n_probes).await, |n| *n >= 5).await;
    worker.stop().await;
}

type Log = Lines<BufReader<ChildStderr>>;

/// Starts a worker process, which ends with the first value. Returns it with its log.
fn worker_process(url: &str) -> (Child, Log) {
    let mut process = Command::new(env!("CARGO_BIN_EXE_suspects_worker"))
        .arg(url)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let log = BufReader::new(process.stderr.take().unwrap()).lines();
    (process, log)
}

/// Reads a worker's log up to the first line that contains `text`.
async fn lines_until(log: &mut Log, text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let read = async {
        loop {
            let line = log.next_line().await.unwrap().expect("the worker has ended");
            lines.push(line);
            if lines.last().is_some_and(|line| line.contains(text)) {
                return;
            }
            assert!(lines.len() < 60, "{lines:#?}");
        }
    };
    soon(read).await;
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_outage_errors_are_suppressed_and_recovery_is_logged() {
    let fixture = Fixture::new().await;
    let proxy = Proxy::start(fixture.database.url()).await.unwrap();
    let (_process, mut log) = worker_process(proxy.url());
    lines_until(&mut log, "worker registered").await;
    proxy.set(Mode::Refuse);
    proxy.cut();
    let outage = lines_until(&mut log, "n_suppressed").await;
    let beats = outage.iter().filter(|line| line.contains("a heartbeat was not acknowledged")).count();
    assert!((1..=3).contains(&beats), "{outage:#?}");
    let claims = outage.iter().filter(|line| line.contains("a claim failed")).count();
    assert!(claims <= 3, "{outage:#?}");
    proxy.set(Mode::Pass);
    lines_until(&mut log, "heartbeats are acknowledged again").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_refused_by_database_waits_with_pending_writes() {
    let fixture = Fixture::new().await;
    let run = takes_a_while(3_000).enqueue(&fixture.db).await.unwrap();
    let options: PgConnectOptions = fixture.database.url().parse().unwrap();
    let name = options.get_database().unwrap().to_owned();
    let mut admin = options.database("postgres").connect().await.unwrap();
    let (_process, mut log) = worker_process(fixture.database.url());
    until(&fixture.db, run.id(), |info| info.state == RunState::Running).await;
    let allow = |is_allowed: bool| {
        AssertSqlSafe(format!(
            "alter database {name} with allow_connections {is_allowed};
             select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"
        ))
    };
    sqlx::raw_sql(allow(false)).execute(&mut admin).await.unwrap();
    lines_until(&mut log, "the commit queue waits for the database").await;
    sqlx::raw_sql(allow(true)).execute(&mut admin).await.unwrap();
    until(&fixture.db, run.id(), |info| info.state == RunState::Completed).await;
}
