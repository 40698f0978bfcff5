//! Maintenance of many runs: a worker does not wait for a heartbeat between batches, and a failing
//! run stops no other.

use std::time::Duration;

use runledger::prelude::*;
use runledger::{RunHandle, RunState, Timings, Worker};
use runledger_tests::proxy::Proxy;
use runledger_tests::rows::{execute, nets_far_apart, scalar, until, worker};
use runledger_tests::testing_db::TestDb;
use runledger_tests::{Fixture, eventually};
use sqlx::Connection;
use uuid::Uuid;

const LONG: Duration = Duration::from_secs(3600);

#[job]
async fn chore_of_an_hour() -> Result<()> {
    Ok(())
}

/// Inserts runs that wait for a signal. The time limits of the waits have passed.
fn waits_that_are_over(n_runs: usize) -> String {
    format!(
        "with runs as (
             insert into runledger.run (run_id, job, tenant, queue, priority, input, start_at)
             select gen_random_uuid(), 'chore_of_an_hour', '', 'default', 0, '[]', now() from generate_series(1, {n_runs})
             returning run_id
         )
         insert into runledger.waiting (run_id, state, wait_any, wait_all, wait_signals, wake_at, attempt, crashes, claims, since)
         select run_id, 'waiting', '{{}}', '{{}}', '{{ping}}', now() - interval '1 hour', 0, 0, 1, now() from runs"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn overdue_waits_and_deadlines_end_without_further_heartbeats() {
    let Fixture { db, database } = Fixture::new().await;
    execute(&db, &waits_that_are_over(1_000)).await;
    let calls = (0..200).map(|_| chore_of_an_hour().delay(LONG).deadline(LONG));
    runledger::enqueue_all(calls, &db).await.unwrap();
    execute(&db, "update runledger.deadline set deadline_at = now() - interval '1 hour'").await;
    let (worker, proxy) = worker_with_one_heartbeat(&database).await;
    let n_left =
        "select (select count(*) from runledger.waiting) + (select count(*) from runledger.deadline)";
    eventually(async || scalar::<i64>(&db, n_left).await, |n_left| *n_left == 0).await;
    assert_eq!(proxy.count("-- heartbeat"), 1);
    worker.stop().await;
}

/// Makes inserts for a run into a table fail.
async fn spoil(db: &Db, table: &str, run_id: Uuid) {
    spoil_where(db, table, &format!("new.run_id = '{run_id}'"), "").await;
}

async fn spoil_where(db: &Db, table: &str, condition: &str, first: &str) {
    let spoiled = format!(
        "create function public.spoil() returns trigger language plpgsql as $$ begin {first} raise 'spoiled'; end $$;
         create trigger spoil before insert on runledger.{table} for each row when ({condition}) execute function public.spoil()"
    );
    execute(db, &spoiled).await;
}

async fn mend(db: &Db) {
    execute(db, "drop function public.spoil cascade").await;
}

async fn queued(db: &Db, n_runs: usize) -> Vec<Uuid> {
    let runs = runledger::enqueue_all((0..n_runs).map(|_| chore_of_an_hour().delay(LONG)), db).await.unwrap();
    let mut ids: Vec<Uuid> = runs.iter().map(|run| run.run_id).collect();
    ids.sort_unstable();
    ids
}

/// Stores requests that only maintenance and workers find.
async fn request(db: &Db, table: &str) {
    execute(db, &format!("insert into runledger.{table} (run_id, reason) select run_id, 'test' from runledger.run order by run_id")).await;
}

/// Starts a worker and waits until all runs but the first have reached a state. The first run is
/// spoiled: this function then repairs it and waits for it.
async fn until_others_and_then_the_first(db: &Db, runs: &[Uuid], state: RunState) {
    let worker = worker(db, jobs![chore_of_an_hour]).await;
    for run_id in &runs[1..] {
        until(db, *run_id, |info| info.state == state).await;
    }
    assert_eq!(db.run(runs[0]).info().await.unwrap().state, RunState::Queued);
    mend(db).await;
    until(db, runs[0], |info| info.state == state).await;
    worker.stop().await;
}

/// Ends queued runs like a process that cancels them and dies before it cancels their children.
pub async fn cancel_halfway(db: &Db, runs: &[Uuid]) {
    let runs = runs.iter().map(|run_id| format!("'{run_id}'")).collect::<Vec<_>>().join(", ");
    let ended = format!(
        r#"with gone as (delete from runledger.ready where run_id in ({runs}) returning run_id, attempt),
           asked as (insert into runledger.cancel (run_id, reason) select run_id, 'half done' from gone)
           insert into runledger.outcome (run_id, state, error, attempt)
           select run_id, 'cancelled', '{{"kind": "cancelled", "message": "cancelled"}}', attempt from gone"#
    );
    execute(db, &ended).await;
}

async fn until_cancelled(db: &Db, run_id: Uuid) {
    until(db, run_id, |info| info.state == RunState::Cancelled).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_cancel_request_does_not_stop_others() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let runs = queued(&db, 3).await;
    spoil(&db, "outcome", runs[0]).await;
    request(&db, "cancel").await;
    until_others_and_then_the_first(&db, &runs, RunState::Cancelled).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_failing_cancel_requests_do_not_stop_others() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let runs = queued(&db, 3).await;
    spoil_where(&db, "outcome", &format!("new.run_id <> '{}'", runs[2]), "perform pg_sleep(0.7);").await;
    request(&db, "cancel").await;
    let worker = worker(&db, jobs![chore_of_an_hour]).await;
    until_cancelled(&db, runs[2]).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn four_hundred_failing_cancel_requests_do_not_stop_others() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let runs = queued(&db, 401).await;
    spoil_where(&db, "outcome", &format!("new.run_id <> '{}'", runs[400]), "").await;
    request(&db, "cancel").await;
    let worker = worker(&db, jobs![chore_of_an_hour]).await;
    until_cancelled(&db, runs[400]).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancels_and_pauses_of_locked_runs_do_not_stop_others() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let to_cancel = queued(&db, 7).await;
    request(&db, "cancel").await;
    let to_pause = queued(&db, 7).await;
    execute(&db, "insert into runledger.pause (run_id, reason) select run_id, 'test' from runledger.ready where run_id not in (select run_id from runledger.cancel) order by run_id").await;
    let free = [to_cancel[6], to_pause[6]];
    let mut tx = db.pool().begin().await.unwrap();
    let lock =
        sqlx::query("select 1 from runledger.ready where run_id <> all ($1) for update").bind(free.to_vec());
    lock.execute(&mut *tx).await.unwrap();
    let worker = worker(&db, jobs![chore_of_an_hour]).await;
    until_cancelled(&db, free[0]).await;
    until(&db, free[1], |info| info.state == RunState::Paused).await;
    tx.rollback().await.unwrap();
    until_cancelled(&db, to_cancel[0]).await;
    until(&db, to_pause[0], |info| info.state == RunState::Paused).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_pause_does_not_stop_others() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let runs = queued(&db, 3).await;
    spoil(&db, "waiting", runs[0]).await;
    request(&db, "pause").await;
    until_others_and_then_the_first(&db, &runs, RunState::Paused).await;
}

/// A worker that sends one heartbeat during a test, and the proxy that counts its statements.
async fn worker_with_one_heartbeat(database: &TestDb) -> (Worker, Proxy) {
    let proxy = Proxy::start(database.url()).await.unwrap();
    let through = Db::connect(proxy.url()).await.unwrap();
    let app = App::new(through).with(jobs![chore_of_an_hour]).timings(Timings::new(LONG, LONG, LONG));
    (app.start().await.unwrap(), proxy)
}

#[tokio::test(flavor = "multi_thread")]
async fn pauses_continue_without_further_heartbeats() {
    let Fixture { db, database } = Fixture::new().await;
    let runs = queued(&db, 6).await;
    let last = runs.last().unwrap();
    spoil_where(&db, "waiting", &format!("new.run_id <> '{last}'"), "perform pg_sleep(0.3);").await;
    request(&db, "pause").await;
    let (worker, proxy) = worker_with_one_heartbeat(&database).await;
    until(&db, *last, |info| info.state == RunState::Paused).await;
    assert_eq!(proxy.count("-- heartbeat"), 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn impossible_cancel_request_is_scanned_at_heartbeat_pace() {
    let Fixture { db, database } = Fixture::new().await;
    queued(&db, 1).await;
    request(&db, "cancel").await;
    execute(&db, "delete from runledger.ready").await;
    let proxy = Proxy::start(database.url()).await.unwrap();
    let worker = worker(&Db::connect(proxy.url()).await.unwrap(), jobs![chore_of_an_hour]).await;
    eventually(async || proxy.count("-- heartbeat"), |n_beats| *n_beats >= 3).await;
    let (n_looks, n_beats) = (proxy.count("-- cancel_left"), proxy.count("-- heartbeat"));
    assert!(n_looks <= 2 * n_beats + 2, "{n_looks} looks in {n_beats} heartbeats");
    worker.stop().await;
}

/// Makes all runs overdue, the first for longest.
async fn overdue(db: &Db, n_runs: usize) -> Vec<Uuid> {
    let calls = (0..n_runs).map(|_| chore_of_an_hour().delay(LONG).deadline(LONG));
    let mut runs: Vec<Uuid> =
        runledger::enqueue_all(calls, db).await.unwrap().iter().map(|run| run.run_id).collect();
    runs.sort_unstable();
    let over = format!(
        "update runledger.deadline
         set deadline_at = now() - case when run_id = '{}' then interval '2 hours' else interval '1 hour' end",
        runs[0]
    );
    execute(db, &over).await;
    runs
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_deadline_does_not_stop_others() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let runs = overdue(&db, 3).await;
    spoil(&db, "outcome", runs[0]).await;
    until_others_and_then_the_first(&db, &runs, RunState::Cancelled).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deadline_with_failing_cancel_request_does_not_stop_others() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let runs = overdue(&db, 3).await;
    spoil(&db, "cancel", runs[0]).await;
    until_others_and_then_the_first(&db, &runs, RunState::Cancelled).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_cancel_of_child_does_not_stop_siblings_or_others() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let runs = queued(&db, 5).await;
    let (parents, children) = runs.split_at(2);
    let families = format!(
        "update runledger.run set parent_id = '{0}', depth = 1 where run_id in ('{2}', '{3}');
         update runledger.run set parent_id = '{1}', depth = 1 where run_id = '{4}'",
        parents[0], parents[1], children[0], children[1], children[2]
    );
    execute(&db, &families).await;
    cancel_halfway(&db, parents).await;
    spoil(&db, "cancel", children[0]).await;
    let worker = worker(&db, jobs![chore_of_an_hour]).await;
    for run_id in &children[1..] {
        until_cancelled(&db, *run_id).await;
    }
    mend(&db).await;
    until_cancelled(&db, children[0]).await;
    eventually(async || scalar::<i64>(&db, "select count(*) from runledger.cancel").await, |n| *n == 0).await;
    worker.stop().await;
}

const END_THE_SESSION: &str = "perform pg_terminate_backend(pg_backend_pid());";

/// With so few connections, maintenance keeps none, and does not try again at once.
async fn small_pool(database: &TestDb) -> Db {
    Db::connect_with(database.url().parse().unwrap(), 4).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn session_ending_trigger_on_deadline_does_not_stop_others() {
    let Fixture { db: _, database } = Fixture::new().await;
    let db = small_pool(&database).await;
    let runs = overdue(&db, 3).await;
    spoil_where(&db, "outcome", &format!("new.run_id = '{}'", runs[0]), END_THE_SESSION).await;
    until_others_and_then_the_first(&db, &runs, RunState::Cancelled).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn session_ending_trigger_on_child_cancel_does_not_stop_others() {
    let Fixture { db: _, database } = Fixture::new().await;
    let db = small_pool(&database).await;
    let runs = queued(&db, 4).await;
    let (parents, children) = runs.split_at(2);
    let families = format!(
        "update runledger.run set parent_id = '{}', depth = 1 where run_id = '{}';
         update runledger.run set parent_id = '{}', depth = 1 where run_id = '{}'",
        parents[0], children[0], parents[1], children[1]
    );
    execute(&db, &families).await;
    cancel_halfway(&db, parents).await;
    spoil_where(&db, "outcome", &format!("new.run_id = '{}'", children[0]), END_THE_SESSION).await;
    let worker = worker(&db, jobs![chore_of_an_hour]).await;
    until_cancelled(&db, children[1]).await;
    let n_requests = async || scalar::<i64>(&db, "select count(*) from runledger.cancel").await;
    eventually(n_requests, |n| *n == 1).await;
    mend(&db).await;
    until_cancelled(&db, children[0]).await;
    eventually(n_requests, |n| *n == 0).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn overdue_wait_with_failing_wake_up_does_not_stop_others() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, &waits_that_are_over(3)).await;
    let spoiled: Uuid = scalar(&db, "select run_id from runledger.waiting limit 1").await;
    spoil(&db, "ready", spoiled).await;
    let worker = worker(&db, jobs![chore_of_an_hour]).await;
    eventually(async || scalar::<i64>(&db, "select count(*) from runledger.outcome").await, |n| *n == 2)
        .await;
    mend(&db).await;
    until(&db, spoiled, |info| info.state == RunState::Completed).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deadline_is_enforced_before_all_failing_waits_are_attempted() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, &waits_that_are_over(200)).await;
    execute(&db, "create sequence public.tries").await;
    let count = "perform nextval('public.tries'); perform pg_sleep(0.05);";
    spoil_where(&db, "ready", "new.cause = 'woken'", count).await;
    let runs = overdue(&db, 1).await;
    let worker = worker(&db, jobs![chore_of_an_hour]).await;
    until_cancelled(&db, runs[0]).await;
    let n_tries = scalar::<i64>(&db, "select last_value from public.tries").await;
    assert!(n_tries < 100, "{n_tries}");
    mend(&db).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locked_overdue_wait_is_scanned_at_heartbeat_pace() {
    let Fixture { db, database } = Fixture::new().await;
    execute(&db, &waits_that_are_over(1)).await;
    let mut tx = db.pool().begin().await.unwrap();
    sqlx::query("select 1 from runledger.waiting for update").execute(&mut *tx).await.unwrap();
    let proxy = Proxy::start(database.url()).await.unwrap();
    let worker = worker(&Db::connect(proxy.url()).await.unwrap(), jobs![chore_of_an_hour]).await;
    eventually(async || proxy.count("-- heartbeat"), |n_beats| *n_beats >= 3).await;
    let (n_looks, n_beats) = (proxy.count("-- timers_due"), proxy.count("-- heartbeat"));
    assert!(n_looks <= 2 * n_beats + 2, "{n_looks} looks in {n_beats} heartbeats");
    tx.rollback().await.unwrap();
    let ended = "select count(*) from runledger.outcome";
    eventually(async || scalar::<i64>(&db, ended).await, |n| *n == 1).await;
    worker.stop().await;
}

/// A table that is locked as a whole is not the fault of the runs.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn overdue_waits_end_soon_after_table_lock_is_released() {
    let Fixture { db, database } = Fixture::new().await;
    execute(&db, &waits_that_are_over(20)).await;
    let mut tx = db.pool().begin().await.unwrap();
    sqlx::query("lock table runledger.ready in exclusive mode").execute(&mut *tx).await.unwrap();
    let proxy = Proxy::start(database.url()).await.unwrap();
    let through = Db::connect(proxy.url()).await.unwrap();
    let app = App::new(through).with(jobs![chore_of_an_hour]).timings(Timings::DEFAULT);
    let worker = app.start().await.unwrap();
    // 20 heartbeats of 2 s each. In that time the batch and two single runs wait for 10 s each.
    eventually(async || proxy.count("-- heartbeat"), |n_beats| *n_beats >= 20).await;
    let n_beats = proxy.count("-- heartbeat");
    tx.rollback().await.unwrap();
    let ended = "select count(*) from runledger.outcome";
    eventually(async || scalar::<i64>(&db, ended).await, |n| *n == 20).await;
    let n_beats = proxy.count("-- heartbeat") - n_beats;
    assert!(n_beats < 8, "{n_beats} heartbeats until all have ended");
    worker.stop().await;
}

/// The pauses of the refused runs end before maintenance has tried all of them.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn many_failing_waits_do_not_block_later_waits() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, &waits_that_are_over(20)).await;
    execute(&db, "update runledger.run set priority = 1").await;
    execute(&db, "update runledger.waiting set wake_at = now() + interval '3 seconds'").await;
    execute(&db, &waits_that_are_over(500)).await;
    execute(
        &db,
        "create function public.refuse() returns trigger language plpgsql as
         $$ begin perform pg_sleep(0.1); raise exception 'no'; end $$;
         create trigger refuses before insert on runledger.ready for each row
         when (new.priority = 0) execute function public.refuse()",
    )
    .await;
    let worker =
        App::new(db.clone()).with(jobs![chore_of_an_hour]).timings(Timings::FAST).start().await.unwrap();
    let ended = "select count(*) from runledger.outcome";
    eventually(async || scalar::<i64>(&db, ended).await, |n| *n == 20).await;
    worker.stop().await;
}

#[job]
async fn chore_without_an_end() -> Result<()> {
    std::future::pending().await
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_reclaim_of_orphan_run_does_not_stop_others() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let app = App::new(db.clone()).with(jobs![chore_without_an_end]);
    let first = app.timings(Timings::FAST).drain(Duration::ZERO).start().await.unwrap();
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(chore_without_an_end().enqueue(&db).await.unwrap().id());
    }
    for run_id in &runs {
        until(&db, *run_id, |info| info.state == RunState::Running).await;
    }
    spoil(&db, "ready", runs[0]).await;
    execute(&db, "update runledger.lease set worker_id = 999").await;
    let orphans = "select count(*) from runledger.lease where worker_id = 999";
    eventually(async || scalar::<i64>(&db, orphans).await, |n| *n == 1).await;
    mend(&db).await;
    eventually(async || scalar::<i64>(&db, orphans).await, |n| *n == 0).await;
    first.stop().await;
}

#[workflow]
async fn chore_waits(wf: &Wf) -> Result<u64> {
    Ok(wf.signal("ping").await?)
}

/// The children of locked runs end. The runs are woken once they are unlocked.
#[tokio::test(flavor = "multi_thread")]
async fn locked_parent_with_failing_wake_up_does_not_stop_others() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![chore_waits, chore_parent]).await;
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(chore_parent().enqueue(&db).await.unwrap().id());
    }
    for run_id in &runs {
        until(&db, *run_id, |info| info.state == RunState::Waiting).await;
    }
    spoil(&db, "ready", runs[1]).await;
    let mut tx = db.pool().begin().await.unwrap();
    let lock =
        sqlx::query("select 1 from runledger.run where run_id = any ($1) for no key update").bind(&runs);
    lock.execute(&mut *tx).await.unwrap();
    let children: Vec<Uuid> =
        scalar(&db, "select array(select run_id from runledger.run where parent_id is not null)").await;
    for child in children {
        RunHandle::attach(chore_waits, &db, child).signal("ping", &1_u64).send(&db).await.unwrap();
    }
    eventually(async || scalar::<i64>(&db, "select count(*) from runledger.outcome").await, |n| *n == 3)
        .await;
    tx.rollback().await.unwrap();
    for run_id in [runs[0], runs[2]] {
        until(&db, run_id, |info| info.state == RunState::Completed).await;
    }
    mend(&db).await;
    until(&db, runs[1], |info| info.state == RunState::Completed).await;
    worker.stop().await;
}

#[workflow]
async fn chore_parent(wf: &Wf) -> Result<u64> {
    let child = wf.start(chore_waits()).await?;
    Ok(child.result().await?)
}

/// Makes a queued run wait for a run that has already ended.
async fn strand(db: &Db, parent: Uuid, child: Uuid) {
    let strand = format!(
        "update runledger.run set parent_id = '{parent}', depth = 1 where run_id = '{child}';
         delete from runledger.ready where run_id in ('{parent}', '{child}');
         insert into runledger.outcome (run_id, state, output, attempt) values ('{child}', 'completed', 'null', 1);
         insert into runledger.waiting (run_id, state, wait_any, wait_all, wait_signals, attempt, crashes, claims, since)
             values ('{parent}', 'waiting', array['{child}'::uuid], '{{}}', '{{}}', 0, 0, 1, now() - interval '1 hour')"
    );
    execute(db, &strand).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missed_parent_wake_up_is_repaired_soon_after_worker_death() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let runs = queued(&db, 4).await;
    strand(&db, runs[0], runs[2]).await;
    let app = App::new(db.clone()).with(jobs![chore_of_an_hour]).timings(nets_far_apart());
    let worker = app.start().await.unwrap();
    until(&db, runs[0], |info| info.state == RunState::Completed).await;
    // The first safety sweeps are over, and the next ones are 10 min away.
    strand(&db, runs[1], runs[3]).await;
    let dead = "insert into runledger.worker (name, version, session_name, jobs, queues, heartbeat_at, lock_incarnation)
                values ('dead', '0', 'dead', '{}', '{}', now() - interval '2 minutes', runledger.server_incarnation())";
    execute(&db, dead).await;
    until(&db, runs[1], |info| info.state == RunState::Completed).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missed_parent_wake_up_is_repaired_soon_after_worker_restart() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let runs = queued(&db, 2).await;
    strand(&db, runs[0], runs[1]).await;
    // The first safety sweeps come before the parent has waited for long enough.
    let killed = "update runledger.waiting set since = now();
                  insert into runledger.worker (name, version, session_name, jobs, queues, heartbeat_at, lock_incarnation)
                  values ('same', '0', 'same', '{}', '{}', now(), runledger.server_incarnation())";
    execute(&db, killed).await;
    let app = App::new(db.clone()).with(jobs![chore_of_an_hour]).name("same").timings(nets_far_apart());
    let worker = app.start().await.unwrap();
    until(&db, runs[0], |info| info.state == RunState::Completed).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locked_row_of_silent_worker_stops_no_other_maintenance() {
    let Fixture { db, database } = Fixture::new().await;
    let silent = "insert into runledger.worker (name, version, session_name, jobs, queues, heartbeat_at, lock_incarnation)
                  select name, '0', name, '{}', '{}', now(), runledger.server_incarnation() from unnest('{locked,other}'::text[]) as name";
    execute(&db, silent).await;
    let mut holder = database.connect().await.unwrap();
    let mut tx = holder.begin().await.unwrap();
    let lock = "select from runledger.worker where name = 'locked' for update";
    sqlx::query(lock).execute(&mut *tx).await.unwrap();
    let worker = worker(&db, jobs![chore_of_an_hour]).await;
    let is_buried = "select count(*) from runledger.worker where name = 'other' and state = 'dead'";
    eventually(async || scalar::<i64>(&db, is_buried).await, |n| *n == 1).await;
    let run = chore_of_an_hour().delay(LONG).deadline(LONG).enqueue(&db).await.unwrap();
    execute(&db, "update runledger.deadline set deadline_at = now() - interval '1 hour'").await;
    let waits_long = "select count(*) from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock' and clock_timestamp() - query_start > interval '5 seconds'";
    let state = async || {
        assert_eq!(scalar::<i64>(&db, waits_long).await, 0, "maintenance waits for the row");
        run.state().await.unwrap()
    };
    eventually(state, |state| state.is_terminal()).await;
    tx.rollback().await.unwrap();
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_parent_wake_up_does_not_stop_others() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let runs = queued(&db, 4).await;
    strand(&db, runs[0], runs[2]).await;
    strand(&db, runs[1], runs[3]).await;
    spoil(&db, "ready", runs[0]).await;
    let worker = worker(&db, jobs![chore_of_an_hour]).await;
    until(&db, runs[1], |info| info.state == RunState::Completed).await;
    mend(&db).await;
    until(&db, runs[0], |info| info.state == RunState::Completed).await;
    worker.stop().await;
}
