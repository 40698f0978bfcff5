//! Requests and deadlines that stay in the database although maintenance has tried them: they must
//! not hold up later ones.

use std::time::Duration;

use runledger::prelude::*;
use runledger::{RunState, Worker};
use runledger_tests::proxy::{Mode, Proxy};
use runledger_tests::rows::{execute, scalar, until, worker};
use runledger_tests::testing_db::TestDb;
use runledger_tests::{Fixture, eventually};
use uuid::Uuid;

const HOUR: Duration = Duration::from_secs(3600);

/// The delay of each message to and from a database in another zone.
const TO_ANOTHER_ZONE: Duration = Duration::from_millis(2);

#[job]
async fn stuck_for_an_hour() -> Result<()> {
    Ok(())
}

/// Inserts completed runs with small ids, and a row of `table` for each.
async fn completed_runs(db: &Db, n_runs: usize, table: &str, columns: &str, values: &str) {
    let insert = format!(
        "with runs as (
             insert into runledger.run (run_id, job, tenant, queue, priority, input, start_at)
             select lpad(to_hex(n), 32, '0')::uuid, 'stuck_for_an_hour', '', 'default', 0, '[]', now()
             from generate_series(1, {n_runs}) n
             returning run_id
         ),
         ended as (
             insert into runledger.outcome (run_id, state, output, attempt)
             select run_id, 'completed', 'null', 1 from runs
         )
         insert into runledger.{table} ({columns}) select {values} from runs"
    );
    execute(db, &insert).await;
}

async fn completed_runs_past_their_deadline(db: &Db, n_runs: usize) {
    let values = "run_id, now() - interval '2 hours'";
    completed_runs(db, n_runs, "deadline", "run_id, deadline_at", values).await;
}

/// Enqueues a run whose deadline has just passed.
async fn overdue_run(db: &Db) -> Uuid {
    let run = stuck_for_an_hour().delay(HOUR).deadline(HOUR).enqueue(db).await.unwrap().id();
    execute(db, &format!("update runledger.deadline set deadline_at = now() where run_id = '{run}'")).await;
    run
}

/// Enqueues a run with a request that only maintenance finds.
async fn run_with_request(db: &Db, table: &str) -> Uuid {
    let run = stuck_for_an_hour().delay(HOUR).enqueue(db).await.unwrap().id();
    execute(db, &format!("insert into runledger.{table} (run_id, reason) values ('{run}', 'test')")).await;
    run
}

async fn worker_far_away(database: &TestDb, delay: Duration) -> (Worker, Proxy) {
    let proxy = Proxy::start(database.url()).await.unwrap();
    let db = Db::connect(proxy.url()).await.unwrap();
    proxy.set(Mode::Delay(delay));
    (worker(&db, jobs![stuck_for_an_hour]).await, proxy)
}

#[tokio::test(flavor = "multi_thread")]
async fn pause_requests_of_terminal_runs_do_not_delay_pause() {
    let Fixture { db, database } = Fixture::new().await;
    completed_runs(&db, 200, "pause", "run_id, reason", "run_id, 'too late'").await;
    let run = run_with_request(&db, "pause").await;
    let (worker, _proxy) = worker_far_away(&database, TO_ANOTHER_ZONE).await;
    until(&db, run, |info| info.state == RunState::Paused).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locked_cancel_requests_of_terminal_runs_do_not_delay_cancel() {
    let Fixture { db, database: _database } = Fixture::new().await;
    completed_runs(&db, 200, "cancel", "run_id, reason", "run_id, 'too late'").await;
    let mut tx = db.pool().begin().await.unwrap();
    sqlx::query("select from runledger.cancel for update").execute(&mut *tx).await.unwrap();
    let run = run_with_request(&db, "cancel").await;
    let worker = worker(&db, jobs![stuck_for_an_hour]).await;
    until(&db, run, |info| info.state == RunState::Cancelled).await;
    tx.rollback().await.unwrap();
    let n_left = async || scalar::<i64>(&db, "select count(*) from runledger.cancel").await;
    eventually(n_left, |n_left| *n_left == 0).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlines_of_terminal_runs_are_removed_without_transaction_each() {
    let Fixture { db, database } = Fixture::new().await;
    completed_runs_past_their_deadline(&db, 2_000).await;
    let run = overdue_run(&db).await;
    let (worker, proxy) = worker_far_away(&database, TO_ANOTHER_ZONE).await;
    until(&db, run, |info| info.state == RunState::Cancelled).await;
    assert_eq!(
        scalar::<i64>(
            &db,
            "select count(*) from runledger.deadline where deadline_at < now() - interval '1 hour'"
        )
        .await,
        0
    );
    assert_eq!(proxy.count("-- cancel_ask"), 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locked_deadlines_of_terminal_runs_do_not_delay_later_deadline() {
    let Fixture { db, database } = Fixture::new().await;
    completed_runs_past_their_deadline(&db, 500).await;
    let mut tx = db.pool().begin().await.unwrap();
    sqlx::query("select from runledger.deadline for update").execute(&mut *tx).await.unwrap();
    let run = overdue_run(&db).await;
    let (worker, _proxy) = worker_far_away(&database, TO_ANOTHER_ZONE).await;
    until(&db, run, |info| info.state == RunState::Cancelled).await;
    tx.rollback().await.unwrap();
    worker.stop().await;
}

/// Inserts an ended graph whose process died before it cancelled the nodes.
fn ended_graph(n_nodes: usize) -> String {
    format!(
        r#"insert into runledger.run (run_id, job, tenant, queue, priority, input, start_at)
               values (lpad('f', 32, 'f')::uuid, 'stuck_for_an_hour', '', 'default', 0, '[]', now());
           insert into runledger.outcome (run_id, state, error, attempt)
               values (lpad('f', 32, 'f')::uuid, 'cancelled', '{{"kind": "cancelled", "message": "cancelled"}}', 0);
           insert into runledger.cancel (run_id, reason) values (lpad('f', 32, 'f')::uuid, 'half done');
           with nodes as (
               insert into runledger.run (run_id, job, tenant, queue, priority, input, start_at, parent_id, depth, node)
               select lpad(to_hex(n), 32, '0')::uuid, 'stuck_for_an_hour', '', 'default', 0, '[]', now(), lpad('f', 32, 'f')::uuid, 1, 'node ' || n
               from generate_series(1, {n_nodes}) n
               returning run_id
           )
           insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
               select run_id, 'default', 'stuck_for_an_hour', 0, now() + interval '1 hour', 'enqueued', 0, 0, 0 from nodes"#
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn slowly_refused_nodes_do_not_repeat_cancel_of_all_nodes() {
    let Fixture { db, database } = Fixture::new().await;
    execute(&db, &ended_graph(40)).await;
    let slow_refusal = "create function public.refuse() returns trigger language plpgsql as $$ begin perform pg_sleep(0.6); raise 'refused'; end $$;
         create trigger refuse before insert on runledger.outcome for each row when (right(new.run_id::text, 1) = '7') execute function public.refuse()";
    execute(&db, slow_refusal).await;
    let (worker, proxy) = worker_far_away(&database, TO_ANOTHER_ZONE).await;
    let n_left = "select count(*) from runledger.ready where right(run_id::text, 1) <> '7'";
    eventually(async || scalar::<i64>(&db, n_left).await, |n_left| *n_left == 0).await;
    // The transactions with 16 nodes, and with the other 24.
    assert_eq!(proxy.count("-- cancel_nodes"), 2);
    worker.stop().await;
}

/// Inserts runs that wait for a signal. The time limits of the waits passed this long ago.
async fn waits_that_are_over(db: &Db, first: usize, last: usize, since: &str) {
    let insert = format!(
        "with runs as (
             insert into runledger.run (run_id, job, tenant, queue, priority, input, start_at)
             select lpad(to_hex(n), 32, '0')::uuid, 'stuck_for_an_hour', '', 'default', 0, '[]', now()
             from generate_series({first}, {last}) n
             returning run_id
         )
         insert into runledger.waiting (run_id, state, wait_any, wait_all, wait_signals, wake_at, attempt, crashes, claims, since)
         select run_id, 'waiting', '{{}}', '{{}}', '{{ping}}', now() - interval '{since}', 0, 0, 1, now() from runs"
    );
    execute(db, &insert).await;
}

/// So many that the pause of the first is over before the last are tried.
const LOCKED_WAITS: usize = 10_000;

#[tokio::test(flavor = "multi_thread")]
async fn locked_waits_do_not_delay_later_timer() {
    let Fixture { db, database } = Fixture::new().await;
    waits_that_are_over(&db, 1, LOCKED_WAITS, "2 hours").await;
    let mut tx = db.pool().begin().await.unwrap();
    sqlx::query("select from runledger.waiting for update").execute(&mut *tx).await.unwrap();
    waits_that_are_over(&db, LOCKED_WAITS + 1, LOCKED_WAITS + 1, "1 second").await;
    let (worker, _proxy) = worker_far_away(&database, Duration::from_millis(40)).await;
    let n_completed = async || scalar::<i64>(&db, "select count(*) from runledger.outcome").await;
    eventually(n_completed, |n_completed| *n_completed == 1).await;
    tx.rollback().await.unwrap();
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn uncommitted_cancel_requests_do_not_delay_later_deadline() {
    let Fixture { db, database: _database } = Fixture::new().await;
    for _ in 0..15 {
        overdue_run(&db).await;
    }
    let mut tx = db.pool().begin().await.unwrap();
    let request =
        "insert into runledger.cancel (run_id, reason) select run_id, 'open' from runledger.deadline";
    sqlx::query(request).execute(&mut *tx).await.unwrap();
    let run = overdue_run(&db).await;
    let worker = worker(&db, jobs![stuck_for_an_hour]).await;
    until(&db, run, |info| info.state == RunState::Cancelled).await;
    tx.rollback().await.unwrap();
    worker.stop().await;
}
