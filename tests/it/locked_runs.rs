//! A transaction that has sent a signal locks the run until it ends. Only work on that run waits.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use runledger::prelude::*;
use runledger::{Cancelled, RunHandle, RunState, Timings, enqueue_all};
use runledger_tests::proxy::{Fault, Proxy};
use runledger_tests::rows::{LONG, execute, scalar, soon, until, worker};
use runledger_tests::{Fixture, eventually};
use sqlx::Transaction;
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::children::child_of;

const HOUR: Duration = Duration::from_secs(3600);

#[workflow]
pub async fn waits_for_ping(wf: &Wf) -> Result<u64> {
    Ok(wf.signal("ping").await?)
}

#[job]
async fn ends(n: u64) -> Result<u64> {
    Ok(n)
}

/// Returns an open transaction that has signalled these runs.
async fn signals<T>(db: &Db, runs: &[&RunHandle<T>]) -> Transaction<'static, sqlx::Postgres> {
    let mut tx = db.pool().begin().await.unwrap();
    for run in runs {
        run.signal("ping", &1).send(&mut *tx).await.unwrap();
    }
    tx
}

#[tokio::test(flavor = "multi_thread")]
async fn scan_full_of_locked_overdue_runs_does_not_block_deadlines() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![waits_for_ping]).await;
    let calls = (0..60).map(|_| waits_for_ping().delay(LONG).deadline(LONG));
    let locked = enqueue_all(calls, &db).await.unwrap();
    let free = waits_for_ping().delay(LONG).deadline(LONG).enqueue(&db).await.unwrap();
    let locked: Vec<_> =
        locked.into_iter().map(|run| RunHandle::attach(waits_for_ping, &db, run.run_id)).collect();
    let tx = signals(&db, &locked.iter().collect::<Vec<_>>()).await;
    let in_order = "update runledger.deadline set deadline_at = now() - interval '1 s' where run_id <> $1";
    sqlx::query(in_order).bind(free.id()).execute(db.pool()).await.unwrap();
    sqlx::query("update runledger.deadline set deadline_at = now() where run_id = $1")
        .bind(free.id())
        .execute(db.pool())
        .await
        .unwrap();
    assert_eq!(until(&db, free.id(), |info| info.state.is_terminal()).await.state, RunState::Cancelled);
    assert_eq!(locked[0].info().await.unwrap().state, RunState::Queued);
    tx.commit().await.unwrap();
    for run in &locked {
        until(&db, run.id(), |info| info.state == RunState::Cancelled).await;
    }
    worker.stop().await;
}

static CHILDREN: Semaphore = Semaphore::const_new(0);

#[job]
async fn ends_when_told() -> Result<()> {
    CHILDREN.acquire().await?.forget();
    Ok(())
}

#[job]
async fn ends_in_a_transaction(#[inject] tx: &mut Tx) -> Result<()> {
    CHILDREN.acquire().await?.forget();
    sqlx::query("select 1").execute(&mut **tx).await?;
    Ok(())
}

#[workflow]
async fn waits_for_children(wf: &Wf) -> Result<u64> {
    let mut plain = Vec::new();
    for _ in 0..4 {
        plain.push(wf.start(ends_when_told()).await?);
    }
    let transactional = wf.start(ends_in_a_transaction()).await?;
    for child in plain {
        child.result().await?;
    }
    transactional.result().await?;
    Ok(wf.signal("ping").await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn children_complete_and_free_slots_while_parent_is_locked() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let jobs = jobs![waits_for_children, ends_when_told, ends_in_a_transaction, ends];
    let app = App::new(db.clone()).with(jobs).timings(Timings::FAST);
    let worker = app.concurrency(5).start().await.unwrap();
    let parent = waits_for_children().enqueue(&db).await.unwrap();
    until(&db, parent.id(), |info| info.state == RunState::Waiting).await;
    let running = "select count(*) from runledger.lease";
    eventually(async || scalar::<i64>(&db, running).await, |n| *n == 5).await;
    let tx = signals(&db, &[&parent]).await;
    CHILDREN.add_permits(5);
    for n in 0..20 {
        assert_eq!(soon(ends(n).enqueue(&db).await.unwrap().result()).await.unwrap(), n);
    }
    let n_ended = "select count(*) from runledger.outcome join runledger.run using (run_id) where parent_id is not null";
    eventually(async || scalar::<i64>(&db, n_ended).await, |n| *n == 5).await;
    assert_eq!(parent.info().await.unwrap().state, RunState::Waiting);
    tx.commit().await.unwrap();
    assert_eq!(soon(parent.result()).await.unwrap(), 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_waiting_for_locked_run_leaves_pool_connections_free() {
    let Fixture { db, database } = Fixture::new().await;
    let shared = Db::connect_with(database.url().parse().unwrap(), 5).await.unwrap();
    let worker = worker(&shared, jobs![waits_for_one, waits_for_ping]).await;
    let parent = waits_for_one().enqueue(&db).await.unwrap();
    until(&db, parent.id(), |info| info.state == RunState::Waiting).await;
    let child = RunHandle::attach(waits_for_ping, &db, child_of(&db, parent.id()).await);
    until(&db, child.id(), |info| info.state == RunState::Waiting).await;
    let tx = signals(&db, &[&parent]).await;
    child.signal("ping", &1).await.unwrap();
    let locked = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    eventually(async || scalar::<i64>(&db, locked).await, |n| *n > 0).await;
    let of_others = [shared.pool().acquire().await.unwrap(), shared.pool().acquire().await.unwrap()];
    drop(of_others);
    tx.rollback().await.unwrap();
    soon(parent.result()).await.unwrap();
    worker.stop().await;
}

#[workflow]
async fn waits_for_one(wf: &Wf) -> Result<String> {
    let child = wf.start(waits_for_ping()).await?;
    Ok(child.result().await.err().map_or_else(String::new, |error| error.failure().to_string()))
}

#[tokio::test(flavor = "multi_thread")]
async fn orphan_is_cancelled_while_its_parent_is_locked() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let first = worker(&db, jobs![waits_for_one]).await;
    let parent = waits_for_one().enqueue(&db).await.unwrap();
    until(&db, parent.id(), |info| info.state == RunState::Waiting).await;
    first.stop().await;
    let child = child_of(&db, parent.id()).await;
    // Simulates a worker that claimed the run, was asked to cancel it, and died.
    let orphan = "
        with gone as (delete from runledger.ready returning run_id),
        leased as (
            insert into runledger.lease (run_id, token, worker_id, attempt, crashes, claims, claimed_at)
            select run_id, gen_random_uuid(), 1, 1, 0, 1, now() from gone
        )
        insert into runledger.cancel (run_id, reason) select run_id, 'no' from gone";
    execute(&db, orphan).await;
    let tx = signals(&db, &[&parent]).await;
    let worker = worker(&db, jobs![waits_for_one, waits_for_ping]).await;
    until(&db, child, |info| info.state == RunState::Cancelled).await;
    tx.commit().await.unwrap();
    assert!(soon(parent.result()).await.unwrap().contains("cancelled"));
    worker.stop().await;
}

#[workflow]
async fn waits_for_one_in_time(wf: &Wf) -> Result<String> {
    let child = wf.start(waits_for_ping().deadline(LONG)).await?;
    Ok(child.result().await.err().map_or_else(String::new, |error| error.failure().to_string()))
}

#[tokio::test(flavor = "multi_thread")]
async fn child_deadline_applies_while_parent_is_locked() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![waits_for_one_in_time, waits_for_ping]).await;
    let parent = waits_for_one_in_time().enqueue(&db).await.unwrap();
    until(&db, parent.id(), |info| info.state == RunState::Waiting).await;
    let child = child_of(&db, parent.id()).await;
    let tx = signals(&db, &[&parent]).await;
    execute(&db, "update runledger.deadline set deadline_at = now()").await;
    until(&db, child, |info| info.state == RunState::Cancelled).await;
    assert_eq!(parent.info().await.unwrap().state, RunState::Waiting);
    // The safety sweep for lost wake-ups does not find this run.
    execute(&db, "update runledger.waiting set since = now() + interval '1 hour'").await;
    tx.commit().await.unwrap();
    assert!(soon(parent.result()).await.unwrap().contains("deadline"));
    worker.stop().await;
}

/// Simulates a worker that gave a run back before it received the request.
async fn asks(db: &Db, what: &str) {
    let ask =
        format!("insert into runledger.{what} (run_id, reason) select run_id, 'no' from runledger.ready");
    execute(db, &ask).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leftover_cancels_and_pauses_proceed_past_locked_runs() {
    let Fixture { db, database: _database } = Fixture::new().await;
    for (what, wanted) in [("cancel", RunState::Cancelled), ("pause", RunState::Paused)] {
        // More runs than one page.
        let calls = (0..250).map(|_| waits_for_ping().delay(HOUR));
        let locked = enqueue_all(calls, &db).await.unwrap();
        let free = waits_for_ping().delay(HOUR).enqueue(&db).await.unwrap();
        asks(&db, what).await;
        let mut tx = db.pool().begin().await.unwrap();
        let lock = "select run_id from runledger.run where run_id <> $1 for no key update";
        sqlx::query(lock).bind(free.id()).execute(&mut *tx).await.unwrap();
        let worker = worker(&db, jobs![waits_for_ping]).await;
        until(&db, free.id(), |info| info.state == wanted).await;
        assert_eq!(db.run(locked[0].run_id).info().await.unwrap().state, RunState::Queued);
        tx.commit().await.unwrap();
        let left = "select count(*) from runledger.ready";
        eventually(async || scalar::<i64>(&db, left).await, |n| *n == 0).await;
        worker.stop().await;
    }
}

#[workflow]
async fn starts_two(wf: &Wf) -> Result<u64> {
    wf.start(waits_for_ping().delay(LONG)).await?;
    wf.start(waits_for_ping().delay(LONG)).await?;
    Ok(wf.signal("ping").await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn child_of_cancelled_run_is_cancelled_beside_locked_sibling() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let first = worker(&db, jobs![starts_two]).await;
    let above = starts_two().enqueue(&db).await.unwrap();
    until(&db, above.id(), |info| info.state == RunState::Waiting).await;
    first.stop().await;
    let children =
        "select array(select run_id from runledger.run where parent_id is not null order by run_id)";
    let children: Vec<Uuid> = scalar(&db, children).await;
    let [locked, free] = [0, 1].map(|at| RunHandle::attach(waits_for_ping, &db, children[at]));
    // Simulates a process that cancelled the run and died before it cancelled the children.
    let cancelled = r#"
        with gone as (delete from runledger.waiting returning run_id, attempt),
        ended as (
            insert into runledger.outcome (run_id, state, error, attempt)
            select run_id, 'cancelled', '{"kind": "cancelled", "message": "cancelled"}', attempt from gone
        )
        insert into runledger.cancel (run_id) select run_id from gone"#;
    execute(&db, cancelled).await;
    let tx = signals(&db, &[&locked]).await;
    let worker = worker(&db, jobs![waits_for_ping]).await;
    until(&db, free.id(), |info| info.state == RunState::Cancelled).await;
    tx.commit().await.unwrap();
    until(&db, locked.id(), |info| info.state == RunState::Cancelled).await;
    eventually(async || scalar::<i64>(&db, "select count(*) from runledger.cancel").await, |n| *n == 0).await;
    worker.stop().await;
}

const REQUESTS: &str = "select count(*) from runledger.cancel";

#[tokio::test(flavor = "multi_thread")]
async fn cancel_request_survives_for_descendants_when_run_ends_during_cleanup() {
    let Fixture { db, database } = Fixture::new().await;
    let first = worker(&db, jobs![starts_two]).await;
    let above = starts_two().enqueue(&db).await.unwrap();
    until(&db, above.id(), |info| info.state == RunState::Waiting).await;
    first.stop().await;
    execute(&db, "insert into runledger.cancel (run_id) select run_id from runledger.waiting").await;
    let tx = signals(&db, &[&above]).await;
    // The request for a run that has ended is dropped while the other waits.
    let other = waits_for_ping().delay(LONG).enqueue(&db).await.unwrap();
    let ended = format!(
        r#"with gone as (delete from runledger.ready where run_id = '{}' returning run_id, attempt),
           asked as (insert into runledger.cancel (run_id) select run_id from gone)
           insert into runledger.outcome (run_id, state, error, attempt)
           select run_id, 'cancelled', '{{"kind": "cancelled", "message": "cancelled"}}', attempt from gone"#,
        other.id()
    );
    execute(&db, &ended).await;

    let proxy = Proxy::start(database.url()).await.unwrap();
    proxy.arm("-- cancel_forget:", Fault::Hold);
    let through = Db::connect(proxy.url()).await.unwrap();
    let second = worker(&through, jobs![waits_for_ping]).await;
    eventually(async || proxy.n_faults(), |n| *n == 1).await;
    second.stop().await;
    tx.rollback().await.unwrap();
    // Simulates a process that cancelled the run and died before it cancelled the children.
    let ended = r#"
        with gone as (delete from runledger.waiting returning run_id, attempt)
        insert into runledger.outcome (run_id, state, error, attempt)
        select run_id, 'cancelled', '{"kind": "cancelled", "message": "cancelled"}', attempt from gone"#;
    execute(&db, ended).await;
    proxy.release();
    let held = "select count(*) from pg_stat_activity where datname = current_database() and query like '-- cancel_forget:%'";
    eventually(async || scalar::<i64>(&db, held).await, |n| *n == 0).await;
    assert_eq!(scalar::<i64>(&db, REQUESTS).await, 1);

    let third = worker(&db, jobs![waits_for_ping]).await;
    let going_on = "select count(*) from runledger.ready";
    eventually(async || scalar::<i64>(&db, going_on).await, |n| *n == 0).await;
    eventually(async || scalar::<i64>(&db, REQUESTS).await, |n| *n == 0).await;
    third.stop().await;
}

static STEPS: Semaphore = Semaphore::const_new(0);

#[job]
async fn goes_on_when_told() -> Result<()> {
    STEPS.acquire().await?.forget();
    Ok(())
}

#[workflow]
async fn waits_after_a_step(wf: &Wf) -> Result<u64> {
    wf.run(goes_on_when_told()).await?;
    Ok(wf.signal("ping").await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn suspending_runs_free_slots_while_locked() {
    let Fixture { db, database } = Fixture::new().await;
    let few = Db::connect_with(database.url().parse().unwrap(), 5).await.unwrap();
    let app = App::new(few).with(jobs![waits_after_a_step, goes_on_when_told, ends]).timings(Timings::FAST);
    let worker = app.concurrency(20).start().await.unwrap();
    let calls = (0..20).map(|_| waits_after_a_step());
    let locked = enqueue_all(calls, &db).await.unwrap();
    let locked: Vec<_> =
        locked.into_iter().map(|run| RunHandle::attach(waits_after_a_step, &db, run.run_id)).collect();
    let running = "select count(*) from runledger.lease";
    eventually(async || scalar::<i64>(&db, running).await, |n| *n == 20).await;
    let tx = signals(&db, &locked.iter().collect::<Vec<_>>()).await;
    STEPS.add_permits(20);
    for n in 0..20 {
        assert_eq!(soon(ends(n).enqueue(&db).await.unwrap().result()).await.unwrap(), n);
    }
    for run in &locked {
        until(&db, run.id(), |info| info.state == RunState::Waiting).await;
    }
    // Only the worker that parked the runs can wake them now.
    execute(&db, "update runledger.waiting set wake_at = now() + interval '1 hour'").await;
    tx.commit().await.unwrap();
    for run in &locked {
        assert_eq!(soon(run.result()).await.unwrap(), 1);
    }
    worker.stop().await;
}

static PARKED: Semaphore = Semaphore::const_new(0);

#[job]
async fn parks_when_told() -> Result<()> {
    PARKED.acquire().await?.forget();
    Ok(())
}

#[workflow]
async fn parked_while_locked(wf: &Wf) -> Result<u64> {
    wf.run(parks_when_told()).await?;
    Ok(wf.signal("ping").await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn locked_run_resumes_after_suspending_worker_has_stopped() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let first = worker(&db, jobs![parked_while_locked, parks_when_told]).await;
    let run = parked_while_locked().enqueue(&db).await.unwrap();
    until(&db, run.id(), |info| info.state == RunState::Running).await;
    let tx = signals(&db, &[&run]).await;
    PARKED.add_permits(1);
    until(&db, run.id(), |info| info.state == RunState::Waiting).await;
    soon(first.stop()).await;
    tx.commit().await.unwrap();
    let looks =
        "select count(*) from runledger.waiting where wake_at between now() and now() + interval '30 s'";
    assert_eq!(scalar::<i64>(&db, looks).await, 1);
    execute(&db, "update runledger.waiting set wake_at = now()").await;
    let second = worker(&db, jobs![parked_while_locked, parks_when_told]).await;
    assert_eq!(soon(run.result()).await.unwrap(), 1);
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_call_blocked_by_locked_run_fails_naming_lock() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let run = waits_for_ping().delay(HOUR).enqueue(&db).await.unwrap();
    let tx = signals(&db, &[&run]).await;
    let (cancel, pause, signal) =
        tokio::join!(run.cancel("no"), run.pause("no"), async { run.signal("ping", &2).send(&db).await });
    for error in [cancel.map(drop), pause.map(drop), signal.map(drop)] {
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("another transaction has kept locked for too long"), "{error}");
    }
    tx.commit().await.unwrap();
    run.cancel("no").await.unwrap();
}

static STEPS_OF_CANCELLED: AtomicUsize = AtomicUsize::new(0);

#[job]
async fn counts() -> Result<()> {
    STEPS_OF_CANCELLED.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

#[workflow]
async fn counts_after_ping(wf: &Wf) -> Result<()> {
    wf.signal::<u64>("ping").await?;
    Ok(wf.run(counts()).await?)
}

#[workflow]
async fn has_one_that_counts(wf: &Wf) -> Result<()> {
    wf.start(counts_after_ping()).await?.result().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn child_locked_during_parent_cancel_does_not_resume() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let jobs = jobs![has_one_that_counts, counts_after_ping, counts];
    let worker = App::new(db.clone()).with(jobs).start().await.unwrap();
    let above = has_one_that_counts().enqueue(&db).await.unwrap();
    let child = child_of(&db, above.id()).await;
    for run_id in [above.id(), child] {
        until(&db, run_id, |info| info.state == RunState::Waiting).await;
    }
    let tx = signals(&db, &[&RunHandle::attach(counts_after_ping, &db, child)]).await;
    assert_eq!(above.cancel("no").await.unwrap(), Cancelled::Now);
    assert_eq!(db.run(child).info().await.unwrap().state, RunState::Waiting);
    tx.commit().await.unwrap();
    until(&db, child, |info| info.state == RunState::Cancelled).await;
    assert_eq!(STEPS_OF_CANCELLED.load(Ordering::SeqCst), 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn child_cancel_does_not_wait_for_locked_parent() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![waits_for_one, waits_for_ping]).await;
    let parent = waits_for_one().enqueue(&db).await.unwrap();
    let child = child_of(&db, parent.id()).await;
    for run_id in [parent.id(), child] {
        until(&db, run_id, |info| info.state == RunState::Waiting).await;
    }
    let tx = signals(&db, &[&parent]).await;
    assert_eq!(RunHandle::attach(waits_for_ping, &db, child).cancel("no").await.unwrap(), Cancelled::Now);
    assert_eq!(parent.info().await.unwrap().state, RunState::Waiting);
    tx.commit().await.unwrap();
    assert!(soon(parent.result()).await.unwrap().contains("cancelled"));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locked_descendants_of_one_cancelled_run_do_not_block_others() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let above = [waits_for_ping(), waits_for_ping()].map(|call| call.delay(HOUR));
    let above: Vec<Uuid> = enqueue_all(above, &db).await.unwrap().into_iter().map(|run| run.run_id).collect();
    let mut below = Vec::new();
    for n in [600, 1] {
        let calls = (0..n).map(|_| waits_for_ping().delay(HOUR));
        let runs = enqueue_all(calls, &db).await.unwrap();
        below.push(runs.into_iter().map(|run| run.run_id).collect::<Vec<_>>());
    }
    for (above, below) in above.iter().zip(&below) {
        let adopt = "update runledger.run set parent_id = $1 where run_id = any ($2)";
        sqlx::query(adopt).bind(above).bind(below).execute(db.pool()).await.unwrap();
    }
    // Simulates a process that cancelled the runs and died before it cancelled their children.
    let cancelled = r#"
        with gone as (delete from runledger.ready where run_id = any ($1) returning run_id, attempt),
        ended as (
            insert into runledger.outcome (run_id, state, error, attempt)
            select run_id, 'cancelled', '{"kind": "cancelled", "message": "cancelled"}', attempt from gone
        )
        insert into runledger.cancel (run_id) select run_id from gone"#;
    sqlx::query(cancelled).bind(&above).execute(db.pool()).await.unwrap();
    let mut tx = db.pool().begin().await.unwrap();
    let lock = "select run_id from runledger.run where run_id = any ($1) for no key update";
    sqlx::query(lock).bind(&below[0]).execute(&mut *tx).await.unwrap();
    let worker = worker(&db, jobs![waits_for_ping]).await;
    until(&db, below[1][0], |info| info.state == RunState::Cancelled).await;
    let asked = "select count(*) from runledger.cancel where run_id = any (array(select run_id from runledger.ready))";
    eventually(async || scalar::<i64>(&db, asked).await, |n| *n == 600).await;
    tx.rollback().await.unwrap();
    for left in ["select count(*) from runledger.ready", "select count(*) from runledger.cancel"] {
        eventually(async || scalar::<i64>(&db, left).await, |n| *n == 0).await;
    }
    worker.stop().await;
}
