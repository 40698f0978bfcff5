//! Behaviours 16 and 23: values that the code receives at once and whose markers are recorded
//! later.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use runledger::prelude::*;
use runledger_tests::rows::{execute, scalar, soon, worker};
use runledger_tests::{Fixture, eventually};
use sqlx::{Connection, PgConnection};
use tokio::sync::Semaphore;

#[job]
async fn passes_by() -> Result<()> {
    Ok(())
}

/// Makes the writer of the run wait for the test's lock at this step.
const HELD_UP: &str = "
    create function hold() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock(78); return new; end $$;
    create trigger held before insert on runledger.step for each row when (new.key = 'beside/passes_by') execute function hold()";

const WAITING: &str = "
    select count(*) from pg_locks
    where locktype = 'advisory' and objid = 78 and not granted and database = (select oid from pg_database where datname = current_database())";

static N_BEGUN: AtomicU32 = AtomicU32::new(0);
static DROPS: Semaphore = Semaphore::const_new(1);
static SENT: Semaphore = Semaphore::const_new(0);

/// Receives a signal, drops the step after it, and starts another.
#[workflow]
async fn drops_a_step_behind_a_signal(wf: &Wf) -> Result<u32> {
    N_BEGUN.fetch_add(1, Ordering::SeqCst);
    let beside = wf.branch("beside");
    let takes = async {
        let value = wf.signal::<u32>("value").await?;
        tokio::select! {
            biased;
            passed = wf.run(passes_by()) => passed?,
            told = DROPS.acquire() => told?.forget(),
        }
        let tells = async { SENT.add_permits(1) };
        let (passed, ()) = tokio::join!(wf.run(passes_by()), tells);
        passed?;
        Ok::<_, Error>(value)
    };
    let (passed, value) = tokio::join!(beside.run(passes_by()), takes);
    passed?;
    value
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicate_signal_marker_in_batch_does_not_fail_attempt() {
    let Fixture { db, database } = Fixture::new().await;
    execute(&db, HELD_UP).await;
    let mut holder: PgConnection = database.connect().await.unwrap();
    sqlx::query("select pg_advisory_lock(78)").execute(&mut holder).await.unwrap();
    let worker = worker(&db, jobs![drops_a_step_behind_a_signal, passes_by]).await;
    let handle = drops_a_step_behind_a_signal().enqueue(&db).await.unwrap();
    eventually(async || scalar::<i64>(&db, WAITING).await, |n| *n == 1).await;
    handle.signal("value", &7).await.unwrap();
    soon(SENT.acquire()).await.unwrap().forget();
    holder.close().await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 7);
    assert_eq!(N_BEGUN.load(Ordering::SeqCst), 1, "the attempt has gone on");
    worker.stop().await;
}

static FAILS: AtomicBool = AtomicBool::new(true);

/// Emits the value that it received, and fails once.
#[workflow(max_attempts = 2, backoff = "1ms..1ms")]
async fn says_what_it_was_given(wf: &Wf) -> Result<u64> {
    let given = wf.random();
    wf.emit(&given);
    if FAILS.swap(false, Ordering::SeqCst) { Err("not yet".into()) } else { Ok(given) }
}

#[tokio::test(flavor = "multi_thread")]
async fn emitted_value_is_same_in_next_attempt() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![says_what_it_was_given]).await;
    let handle = says_what_it_was_given().enqueue(&db).await.unwrap();
    let given = soon(handle.result()).await.unwrap();
    let lines = handle.output(1).await.unwrap();
    let said: Vec<u64> = lines.iter().map(|line| line.decode().unwrap()).collect();
    assert_eq!(said, [given]);
    worker.stop().await;
}

/// Starts a step after a value, stops polling it, and runs another.
#[workflow]
async fn keeps_a_step_behind_a_value(wf: &Wf) -> Result<()> {
    let _ = wf.now();
    let mut kept = wf.run(passes_by());
    let begun = futures::poll!(&mut kept);
    assert!(begun.is_pending(), "the value is not written yet");
    wf.run(passes_by()).await?;
    Ok(kept.await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn unpolled_step_writing_earlier_marker_does_not_block_other_steps() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![keeps_a_step_behind_a_value, passes_by]).await;
    let handle = keeps_a_step_behind_a_value().enqueue(&db).await.unwrap();
    soon(handle.result()).await.unwrap();
    worker.stop().await;
}
