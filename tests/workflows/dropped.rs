//! Behaviour 25 for steps that the code has dropped, such as the losers of a race. They are
//! compensated too, once their bodies have ended. Also compensations that cannot be built.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use runledger::prelude::*;
use runledger::{ClientError, FailureKind, RunState, Step, Timings, Worker};
use runledger_tests::rows::{execute, scalar, soon, take_away, until};
use runledger_tests::{Fixture, eventually};
use sqlx::{Connection, PgConnection};
use tokio::sync::{Barrier, Semaphore};
use uuid::Uuid;

const TABLES: &str = "create table deed (n serial, run_id uuid, what text)";
const WRITE: &str = "insert into deed (run_id, what) values ($1, $2)";

/// Acts outside of the record's transaction, so its effect does not depend on the record.
#[job(max_attempts = 1)]
async fn acts(what: String, #[inject] db: &Db, #[inject] context: &Context) -> Result<String> {
    sqlx::query(WRITE).bind(context.run_id()).bind(&what).execute(db.pool()).await?;
    Ok(what)
}

/// Acts in the transaction of its record.
#[job(max_attempts = 1)]
async fn books(what: String, #[inject] tx: &mut Tx, #[inject] context: &Context) -> Result<String> {
    sqlx::query(WRITE).bind(context.run_id()).bind(&what).execute(&mut **tx).await?;
    Ok(what)
}

#[job]
async fn compensates(what: String, #[inject] tx: &mut Tx, #[inject] context: &Context) -> Result<()> {
    sqlx::query(WRITE).bind(context.run_id()).bind(format!("not {what}")).execute(&mut **tx).await?;
    Ok(())
}

async fn deeds(db: &Db) -> Vec<String> {
    sqlx::query_scalar("select what from deed order by n").fetch_all(db.pool()).await.unwrap()
}

async fn worker<const N: usize>(db: &Db, jobs: [&'static runledger::Definition; N]) -> Worker {
    App::new(db.clone()).with(jobs).provide(db.clone()).timings(Timings::FAST).start().await.unwrap()
}

static LEAVES: Semaphore = Semaphore::const_new(0);
static LEFT: Semaphore = Semaphore::const_new(0);

/// Drops a step when the test says so, and compensates it.
#[workflow(max_attempts = 1)]
async fn leaves_a_step(wf: &Wf, is_transactional: bool) -> Result<()> {
    let saga = wf.saga();
    let step = if is_transactional {
        saga.run(books("car".into()), |what| compensates(what.clone()))
    } else {
        saga.run(acts("car".into()), |what| compensates(what.clone()))
    };
    tokio::select! {
        biased;
        done = step => drop(done?),
        told = LEAVES.acquire() => told?.forget(),
    }
    LEFT.add_permits(1);
    saga.compensate().await;
    Ok(())
}

/// Makes the record of `acts` and the commit of a deed `car` wait for the test's lock.
const HELD_UP: &str = "
    create function hold() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock(77); return new; end $$;
    create trigger held before insert on runledger.step for each row when (new.key = 'acts') execute function hold();
    create constraint trigger held after insert on deed deferrable initially deferred for each row when (new.what = 'car') execute function hold()";

/// Counts the sessions of this database that wait for the test's lock.
const WAITING: &str = "
    select count(*) from pg_locks
    where locktype = 'advisory' and objid = 77 and not granted and database = (select oid from pg_database where datname = current_database())";

#[tokio::test(flavor = "multi_thread")]
async fn step_dropped_during_recording_is_compensated_by_workflow_code() {
    for is_transactional in [false, true] {
        let Fixture { db, database } = Fixture::new().await;
        execute(&db, TABLES).await;
        execute(&db, HELD_UP).await;
        let mut holder: PgConnection = database.connect().await.unwrap();
        sqlx::query("select pg_advisory_lock(77)").execute(&mut holder).await.unwrap();
        // The body that acts outside must commit at once.
        if !is_transactional {
            execute(&db, "drop trigger held on deed").await;
        }
        let worker = worker(&db, jobs![leaves_a_step, acts, books, compensates]).await;
        let handle = leaves_a_step(is_transactional).enqueue(&db).await.unwrap();
        eventually(async || scalar::<i64>(&db, WAITING).await, |n| *n == 1).await;
        LEAVES.add_permits(1);
        soon(LEFT.acquire()).await.unwrap().forget();
        holder.close().await.unwrap();
        soon(handle.result()).await.unwrap();
        assert_eq!(deeds(&db).await, ["car", "not car"], "transactional: {is_transactional}");
        worker.stop().await;
    }
}

static GOES_TO_SLEEP: Semaphore = Semaphore::const_new(0);

#[workflow(max_attempts = 1)]
async fn leaves_a_step_and_sleeps(wf: &Wf) -> Result<()> {
    let step = wf.saga().run(books("car".into()), |what| compensates(what.clone()));
    tokio::select! {
        biased;
        done = step => drop(done?),
        told = GOES_TO_SLEEP.acquire() => told?.forget(),
    }
    Ok(wf.sleep(Duration::from_secs(3600)).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn run_suspends_only_after_its_dropped_step_is_recorded() {
    let Fixture { db, database } = Fixture::new().await;
    execute(&db, TABLES).await;
    execute(&db, HELD_UP).await;
    let mut holder: PgConnection = database.connect().await.unwrap();
    sqlx::query("select pg_advisory_lock(77)").execute(&mut holder).await.unwrap();
    let worker = worker(&db, jobs![leaves_a_step_and_sleeps, books, compensates]).await;
    let handle = leaves_a_step_and_sleeps().enqueue(&db).await.unwrap();
    eventually(async || scalar::<i64>(&db, WAITING).await, |n| *n == 1).await;
    GOES_TO_SLEEP.add_permits(1);
    let n_recorded = "select count(*) from runledger.step";
    eventually(async || scalar::<i64>(&db, n_recorded).await, |n| *n == 1).await;
    assert_eq!(handle.state().await.unwrap(), RunState::Running);
    holder.close().await.unwrap();
    until(&db, handle.id(), |info| info.cause.as_deref() == Some("slept")).await;
    assert_eq!(scalar::<i64>(&db, n_recorded).await, 2);
    handle.cancel("not needed").await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Cancelled).await;
    assert_eq!(deeds(&db).await, ["car", "not car"], "by the engine as by the code");
    worker.stop().await;
}

static BOTH: LazyLock<Barrier> = LazyLock::new(|| Barrier::new(2));

/// Ends once both have started.
#[job(max_attempts = 1)]
async fn meets(what: String) -> Result<String> {
    BOTH.wait().await;
    Ok(what)
}

#[workflow(max_attempts = 1)]
async fn lets_two_race(wf: &Wf) -> Result<usize> {
    let saga = wf.saga();
    let steps =
        ["a", "b"].map(|what| saga.run(meets(what.into()).key(what), |what| compensates(what.clone())));
    let (winner, _) = wf.race(steps).await?;
    saga.compensate().await;
    Ok(winner)
}

#[tokio::test(flavor = "multi_thread")]
async fn workflow_compensates_race_loser_and_records_which_step_lost() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let worker = worker(&db, jobs![lets_two_race, meets, compensates]).await;
    let handle = lets_two_race().enqueue(&db).await.unwrap();
    let winner = soon(handle.result()).await.unwrap();
    assert_eq!(deeds(&db).await, ["not b", "not a"], "the last that was begun first");
    let steps = handle.steps().await.unwrap();
    let decided = steps.iter().find(|step| step.key == "saga.compensate[meets[a]]").unwrap();
    let loser = ["a", "b"][1 - winner];
    assert_eq!(decided.result.as_deref(), Ok(format!("[\"meets[{loser}]\"]").as_str()));
    worker.stop().await;
}

#[job(max_attempts = 1)]
async fn never_ends(what: String) -> Result<String> {
    std::future::pending::<()>().await;
    Ok(what)
}

#[workflow(max_attempts = 1)]
async fn lets_one_race_that_never_ends(wf: &Wf) -> Result<usize> {
    let saga = wf.saga();
    let steps: [Step<'_, String>; 2] = [
        saga.run(never_ends("hotel".into()), |what| compensates(what.clone())),
        saga.run(books("flight".into()), |what| compensates(what.clone())),
    ];
    let (winner, _) = wf.race(steps).await?;
    saga.compensate().await;
    Ok(winner)
}

#[tokio::test(flavor = "multi_thread")]
async fn step_with_dropped_body_is_neither_awaited_recorded_nor_compensated() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let worker = worker(&db, jobs![lets_one_race_that_never_ends, never_ends, books, compensates]).await;
    let handle = lets_one_race_that_never_ends().enqueue(&db).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 1);
    assert_eq!(deeds(&db).await, ["flight", "not flight"]);
    let keys: Vec<String> = handle.steps().await.unwrap().into_iter().map(|step| step.key).collect();
    assert!(keys.iter().all(|key| !key.starts_with("never_ends")), "{keys:?}");
    worker.stop().await;
}

/// Books a flight, and races for one of three cars.
#[workflow(max_attempts = 1)]
async fn races_for_a_car(wf: &Wf, n: usize) -> Result<()> {
    let saga = wf.saga();
    saga.run(books("flight".into()), |what| compensates(what.clone())).await?;
    let cars = ["red", "green", "blue"];
    wf.race(cars.map(|car| saga.run(books(car.into()).key(car), |what| compensates(what.clone())))).await?;
    if n.is_multiple_of(3) {
        wf.run(books("no undo".into()).key("last")).await?;
    } else {
        saga.compensate().await;
        wf.run(acts("after".into())).await?;
    }
    if n.is_multiple_of(2) { Err(Error::terminal("no way")) } else { Ok(()) }
}

/// Counts deeds that were not written once and compensated once.
const UNEVEN: &str = "
    select count(*)
    from (select run_id, replace(what, 'not ', '') as what, count(*) as n, count(*) filter (where what like 'not %') as n_undone from deed group by 1, 2) as done
    where what not in ('no undo', 'after') and (n, n_undone) <> (2, 1)";

#[tokio::test(flavor = "multi_thread")]
async fn race_losers_are_compensated_once_wherever_attempts_end() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let jobs = jobs![races_for_a_car, acts, books, compensates];
    let mut runs = Vec::new();
    // The omitted runs complete and keep their deeds.
    for n in (0..36_usize).filter(|n| n % 3 != 0 || n % 2 == 0) {
        runs.push(races_for_a_car(n).enqueue(&db).await.unwrap());
    }
    let one = worker(&db, jobs).await;
    let two = worker(&db, jobs).await;
    let ended = "select count(*) from runledger.outcome";
    let mut n_losses = 0;
    while scalar::<i64>(&db, ended).await < i64::try_from(runs.len()).unwrap() {
        for run in &runs {
            n_losses += i32::from(n_losses < 120 && take_away(&db, run.id()).await);
            let state = run.state().await.unwrap();
            assert_ne!(state, RunState::Blocked, "{:?}", run.info().await.unwrap().error);
        }
    }
    assert_eq!(scalar::<i64>(&db, UNEVEN).await, 0, "after {n_losses} losses");
    let losers = "select count(*) from runledger.step where key like 'compensate[books[%'";
    assert!(scalar::<i64>(&db, losers).await > i64::try_from(runs.len()).unwrap(), "no loser was recorded");
    one.stop().await;
    two.stop().await;
}

static BODIES: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

#[job(max_attempts = 3, backoff = "1ms..1ms")]
async fn counts() -> Result<u32> {
    Ok(BODIES[0].fetch_add(1, Ordering::SeqCst))
}

#[job(max_attempts = 3, backoff = "1ms..1ms")]
async fn counts_and_books(#[inject] tx: &mut Tx) -> Result<u32> {
    sqlx::query(WRITE).bind(Uuid::nil()).bind("counted").execute(&mut **tx).await?;
    Ok(BODIES[1].fetch_add(1, Ordering::SeqCst))
}

/// The closure that builds the compensation panics.
#[workflow(max_attempts = 3, backoff = "1ms..1ms")]
async fn cannot_say_how(wf: &Wf, is_transactional: bool) -> Result<()> {
    let saga = wf.saga();
    let call = |n: &u32| {
        assert!(*n > 99, "how is {n} undone?");
        compensates(n.to_string())
    };
    saga.run(books("before".into()), |what| compensates(what.clone())).await?;
    if is_transactional {
        saga.run(counts_and_books(), call).await?
    } else {
        saga.run(counts(), call).await?
    };
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn panic_building_compensation_fails_step_without_running_body_again() {
    for (is_transactional, words) in [(false, "see to it by hand"), (true, "was rolled back")] {
        let Fixture { db, database: _database } = Fixture::new().await;
        execute(&db, TABLES).await;
        let worker = worker(&db, jobs![cannot_say_how, counts, counts_and_books, books, compensates]).await;
        let handle = cannot_say_how(is_transactional).enqueue(&db).await.unwrap();
        let error = soon(handle.result()).await.unwrap_err();
        let ClientError::RunFailed { failure, .. } = error else { panic!("{error}") };
        let text = failure.to_string();
        for words in ["could not be made", words, "panicked: how is 0 undone?", "dropped.rs:"] {
            assert!(text.contains(words), "`{words}` is missing: {text}");
        }
        let steps = handle.steps().await.unwrap();
        let failed = steps.iter().find(|step| step.key.starts_with("counts")).unwrap();
        assert_eq!(failed.result.as_ref().unwrap_err().kind, FailureKind::Panic);
        assert_eq!(BODIES[usize::from(is_transactional)].load(Ordering::SeqCst), 1, "the body ran once");
        assert_eq!(deeds(&db).await, ["before", "not before"]);
        worker.stop().await;
    }
}
