//! Behaviour 19 for slow commits: no other run waits for one, whatever happens to its run and step.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use runledger::prelude::*;
use runledger::{RunState, StepTx, Timings};
use runledger_tests::proxy::{Fault, Mode, Proxy};
use runledger_tests::rows::{execute, nets_far_apart, scalar, soon, until, worker};
use runledger_tests::{Fixture, eventually};
use sqlx::{Connection, PgConnection};
use tokio::sync::Semaphore;
use uuid::Uuid;

/// A commit with an entry waits for the test's lock. It is refused if `refusal` has a row.
const TABLES: &str = "
    create table ledger (n bigint);
    create table refusal (n bigint);
    create function hold() returns trigger language plpgsql as $$
    begin
        perform pg_advisory_xact_lock(93);
        if exists (select from refusal) then raise exception 'refused'; end if;
        return null;
    end $$;
    create constraint trigger held after insert on ledger deferrable initially deferred for each row execute function hold()";

/// Counts the commits that wait for the test's lock.
const HELD_UP: &str = "
    select count(*) from pg_locks
    where locktype = 'advisory' and objid = 93 and not granted and database = (select oid from pg_database where datname = current_database())";

/// Lists the statements that wait for a row or for the transaction that wrote it.
const WAITING_FOR_ROWS: &str = "
    select coalesce(string_agg(wait_event || ': ' || query, '; '), '') from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock' and wait_event in ('transactionid', 'tuple')";

const ENTER: &str = "insert into ledger values (1)";

#[job(max_attempts = 1)]
async fn slowly_enters(#[inject] tx: &mut Tx) -> Result<()> {
    sqlx::query(ENTER).execute(&mut **tx).await?;
    Ok(())
}

async fn slowly_entered(mut tx: StepTx) -> Result<()> {
    sqlx::query(ENTER).execute(&mut *tx).await?;
    Ok(())
}

#[job]
async fn beside_commits() -> Result<()> {
    Ok(())
}

static LEAVES: Semaphore = Semaphore::const_new(0);

/// Writes an entry in a step. Drops the step on request if `may_leave`.
#[workflow(max_attempts = 1)]
async fn enters_in_a_step(wf: &Wf, is_closure: bool, may_leave: bool) -> Result<()> {
    let step = if is_closure { wf.tx("entry", slowly_entered) } else { wf.run(slowly_enters()) };
    tokio::select! {
        biased;
        entered = step => entered?,
        told = LEAVES.acquire(), if may_leave => told?.forget(),
    }
    Ok(())
}

/// Which code commits, and why it no longer waits for the commit.
#[derive(Clone, Copy, Debug)]
enum Left {
    CancelledJob,
    CancelledStep { is_closure: bool },
    DroppedStep { is_closure: bool },
}

/// Makes one run abandon its commit while other runs complete. Returns the final state of that run,
/// its entries and its steps.
async fn leave(left: Left, is_refused: bool) -> (RunState, i64, i64) {
    let Fixture { db, database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let mut holder: PgConnection = database.connect().await.unwrap();
    sqlx::query("select pg_advisory_lock(93)").execute(&mut holder).await.unwrap();
    // With 5 connections the commit queue has one writer. A writer that waits would block all runs.
    let few = Db::connect_with(database.url().parse().unwrap(), 5).await.unwrap();
    let worker = worker(&few, jobs![enters_in_a_step, slowly_enters, beside_commits]).await;
    let run_id: Uuid = match left {
        Left::CancelledJob => slowly_enters().enqueue(&db).await.unwrap().id(),
        Left::CancelledStep { is_closure } => {
            enters_in_a_step(is_closure, false).enqueue(&db).await.unwrap().id()
        }
        Left::DroppedStep { is_closure } => {
            enters_in_a_step(is_closure, true).enqueue(&db).await.unwrap().id()
        }
    };
    eventually(async || scalar::<i64>(&db, HELD_UP).await, |n| *n == 1).await;
    match left {
        Left::CancelledJob => {
            RunHandle::attach(slowly_enters, &db, run_id).cancel("not needed").await.unwrap();
        }
        Left::CancelledStep { .. } => {
            RunHandle::attach(enters_in_a_step, &db, run_id).cancel("not needed").await.unwrap();
        }
        Left::DroppedStep { .. } => LEAVES.add_permits(1),
    }
    for _ in 0..20 {
        soon(beside_commits().enqueue(&db).await.unwrap().result()).await.unwrap();
    }
    assert_eq!(scalar::<i64>(&db, HELD_UP).await, 1, "{left:?}");
    assert_eq!(db.run(run_id).info().await.unwrap().state, RunState::Running, "{left:?}");
    if is_refused {
        execute(&db, "insert into refusal values (1)").await;
    }
    holder.close().await.unwrap();
    let run = until(&db, run_id, |run| run.state.is_terminal()).await;
    worker.stop().await;
    let steps = "select count(*) from runledger.step where output is not null";
    (run.state, scalar(&db, "select count(*) from ledger").await, scalar(&db, steps).await)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn other_runs_complete_while_cancelled_run_commits() {
    assert_eq!(leave(Left::CancelledJob, false).await, (RunState::Completed, 1, 0), "its commit ends it");
    assert_eq!(leave(Left::CancelledJob, true).await, (RunState::Cancelled, 0, 0));
    for is_closure in [false, true] {
        let left = Left::CancelledStep { is_closure };
        assert_eq!(leave(left, false).await, (RunState::Cancelled, 1, 1), "{left:?}");
        assert_eq!(leave(left, true).await, (RunState::Cancelled, 0, 0), "{left:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_runs_complete_while_dropped_step_commits() {
    for is_closure in [false, true] {
        let left = Left::DroppedStep { is_closure };
        assert_eq!(leave(left, false).await, (RunState::Completed, 1, 1), "{left:?}");
        assert_eq!(leave(left, true).await, (RunState::Completed, 0, 0), "{left:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_run_in_commit_is_not_treated_as_unresponsive() {
    let Fixture { db, database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let mut holder: PgConnection = database.connect().await.unwrap();
    sqlx::query("select pg_advisory_lock(93)").execute(&mut holder).await.unwrap();
    let proxy = Proxy::start(database.url()).await.unwrap();
    let through = Db::connect(proxy.url()).await.unwrap();
    let app = App::new(through).with(jobs![slowly_enters]).timings(Timings::FAST);
    let worker = app.cancel_grace(Duration::ZERO).start().await.unwrap();
    let run = slowly_enters().enqueue(&db).await.unwrap();
    eventually(async || scalar::<i64>(&db, HELD_UP).await, |n| *n == 1).await;
    run.cancel("not needed").await.unwrap();
    // Each heartbeat looks for cancels that bodies ignore.
    for _ in 0..4 {
        let beat = "select heartbeat_at::text from runledger.worker";
        let before: String = scalar(&db, beat).await;
        eventually(async || scalar::<String>(&db, beat).await, |now| *now != before).await;
    }
    assert_eq!(scalar::<String>(&db, WAITING_FOR_ROWS).await, "", "maintenance is for others too");
    holder.close().await.unwrap();
    until(&db, run.id(), |run| run.state == RunState::Completed).await;
    worker.stop().await;
    assert_eq!(proxy.count("-- settle"), 1, "what has ended in its commit is not settled again");
}

#[job]
async fn works_for_long() -> Result<()> {
    // Longer than the limit for an unpolled transaction.
    tokio::time::sleep(Duration::from_secs(11)).await;
    Ok(())
}

static COMMITS: Semaphore = Semaphore::const_new(0);
static KEEPS: Semaphore = Semaphore::const_new(0);

/// Waits for another step once its own is committing.
#[workflow(max_attempts = 1)]
async fn keeps_what_is_committed(wf: &Wf) -> Result<()> {
    let mut entry = pin!(wf.tx("entry", slowly_entered));
    tokio::select! {
        biased;
        entered = &mut entry => return Ok(entered?),
        told = COMMITS.acquire() => told?.forget(),
    }
    KEEPS.add_permits(1);
    wf.run(works_for_long()).await?;
    Ok(entry.await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn unpolled_step_holds_no_transaction_once_committed() {
    let Fixture { db, database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let mut holder: PgConnection = database.connect().await.unwrap();
    sqlx::query("select pg_advisory_lock(93)").execute(&mut holder).await.unwrap();
    let worker = worker(&db, jobs![keeps_what_is_committed, works_for_long]).await;
    let run = keeps_what_is_committed().enqueue(&db).await.unwrap();
    eventually(async || scalar::<i64>(&db, HELD_UP).await, |n| *n == 1).await;
    COMMITS.add_permits(1);
    soon(KEEPS.acquire()).await.unwrap().forget();
    holder.close().await.unwrap();
    soon(run.result()).await.unwrap();
    assert_eq!(scalar::<i64>(&db, "select count(*) from ledger").await, 1);
    worker.stop().await;
}

/// A value that exists as long as any part of an attempt exists.
#[derive(Debug)]
struct HeldByAttempts;

#[job(max_attempts = 1)]
async fn never_acknowledged(#[inject] proxy: &Arc<Proxy>, #[inject] tx: &mut Tx) -> Result<()> {
    sqlx::query("insert into ledger values (1)").execute(&mut **tx).await?;
    proxy.arm("COMMIT", Fault::Hold);
    Ok(())
}

#[job]
async fn taken_back_in_time() -> Result<()> {
    Ok(())
}

/// As [`never_acknowledged`], in a step with a compensation.
#[workflow(max_attempts = 1)]
async fn never_acknowledged_in_a_step(wf: &Wf) -> Result<()> {
    Ok(wf.saga().run(never_acknowledged(), |()| taken_back_in_time()).await?)
}

/// Stops a worker whose database disappeared during a commit.
async fn stop_without_a_database(as_a_step: bool) {
    let Fixture { db, database } = Fixture::new().await;
    execute(&db, "create table ledger (n bigint)").await;
    let proxy = Arc::new(Proxy::start(database.url()).await.unwrap());
    let through = Db::connect(proxy.url()).await.unwrap();
    let held = Arc::new(HeldByAttempts);
    let app =
        App::new(through).with(jobs![never_acknowledged, never_acknowledged_in_a_step, taken_back_in_time]);
    let app = app.provide(Arc::clone(&proxy)).provide(Arc::clone(&held)).timings(Timings::FAST);
    let worker = app.drain(Duration::ZERO).start().await.unwrap();
    if as_a_step {
        never_acknowledged_in_a_step().enqueue(&db).await.unwrap();
    } else {
        never_acknowledged().enqueue(&db).await.unwrap();
    }
    // The worker has lost the connection of the commit, and queries the outcome.
    eventually(async || scalar::<String>(&db, WAITING_FOR_ROWS).await, |waiting| !waiting.is_empty()).await;
    proxy.set(Mode::Refuse);
    proxy.cut();
    soon(worker.stop()).await;
    eventually(async || Arc::strong_count(&held), |n| *n == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_stops_without_database_and_drops_unresolved_commit_checks() {
    tokio::join!(stop_without_a_database(false), stop_without_a_database(true));
}

static CHILD_ENDS: Semaphore = Semaphore::const_new(0);

#[job]
async fn ends_when_told() -> Result<u64> {
    CHILD_ENDS.acquire().await?.forget();
    Ok(1)
}

#[workflow]
async fn waits_for_its_end(wf: &Wf) -> Result<u64> {
    Ok(wf.start(ends_when_told()).await?.result().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn locked_parent_wakes_after_child_completes_with_unacknowledged_commit() {
    let Fixture { db, database } = Fixture::new().await;
    let proxy = Proxy::start(database.url()).await.unwrap();
    let app = App::new(Db::connect(proxy.url()).await.unwrap());
    let app = app.with(jobs![waits_for_its_end, ends_when_told]).timings(nets_far_apart());
    let worker = app.start().await.unwrap();
    let parent = waits_for_its_end().enqueue(&db).await.unwrap();
    until(&db, parent.id(), |info| info.state == RunState::Waiting).await;
    let mut holder = database.connect().await.unwrap();
    let mut tx = holder.begin().await.unwrap();
    let lock = "select from runledger.run where run_id = $1 for update";
    sqlx::query(lock).bind(parent.id()).execute(&mut *tx).await.unwrap();
    proxy.arm("COMMIT", Fault::LoseReply);
    CHILD_ENDS.add_permits(1);
    eventually(async || scalar::<i64>(&db, "select count(*) from runledger.outcome").await, |n| *n == 1)
        .await;
    eventually(async || proxy.n_faults(), |n| *n == 1).await;
    tx.rollback().await.unwrap();
    assert_eq!(soon(parent.result()).await.unwrap(), 1);
    worker.stop().await;
}
