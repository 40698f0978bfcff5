//! Behaviours 19 and 25: inline transactions, and compensated steps.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use runledger::prelude::*;
use runledger::{Cancelled, ClientError, FailureKind, RunState};
use runledger_tests::rows::{execute, scalar, soon, take_away, until, worker, worker_without_polls};
use runledger_tests::{Fixture, eventually};
use tokio::sync::{Notify, Semaphore};

const TABLES: &str =
    "create table deed (n serial, what text); create table broken (what text); create sequence kills";

/// Writes a deed in the transaction of its record.
#[job(max_attempts = 2, backoff = "10ms..10ms")]
async fn does(what: String, #[inject] tx: &mut Tx) -> Result<String> {
    sqlx::query("insert into deed (what) values ($1)").bind(&what).execute(&mut **tx).await?;
    Ok(what)
}

/// Writes the compensation of a deed, unless the deed is in `broken`.
#[job(max_attempts = 2, backoff = "10ms..10ms")]
async fn compensates(what: String, #[inject] tx: &mut Tx) -> Result<()> {
    let is_broken = "select exists (select from broken where what = $1)";
    if sqlx::query_scalar(is_broken).bind(&what).fetch_one(&mut **tx).await? {
        return Err(format!("{what} cannot be undone now").into());
    }
    sqlx::query("insert into deed (what) values ($1)").bind(format!("not {what}")).execute(&mut **tx).await?;
    Ok(())
}

#[job(max_attempts = 1)]
async fn fails() -> Result<()> {
    Err("no more".into())
}

static GATE: Semaphore = Semaphore::const_new(0);

#[job]
async fn waits_at_the_gate() -> Result<()> {
    GATE.acquire().await?.forget();
    Ok(())
}

/// Runs three steps with compensations, one of them in a branch, and then ends as `then` says.
#[workflow]
async fn journey(wf: &Wf, then: String) -> Result<u32> {
    let (saga, branch) = (wf.saga(), wf.branch("inner"));
    saga.run(does("flight".into()), |what| compensates(what.clone())).await?;
    let inner = branch.saga();
    inner.run(does("hotel".into()), |what| compensates(what.clone())).await?;
    wf.run(does("no undo".into())).await?;
    saga.run(does("car".into()), |what| compensates(what.clone())).await?;
    match then.as_str() {
        "fails" => wf.run(fails()).await?,
        "sleeps" => wf.sleep(Duration::from_secs(3600)).await?,
        "waits" => wf.signal("go").await?,
        "works" => wf.run(waits_at_the_gate()).await?,
        "compensates" => saga.compensate().await,
        "compensates and fails" => {
            saga.compensate().await;
            wf.run(fails()).await?;
        }
        _ => {}
    }
    Ok(7)
}

const ALL_UNDONE: [&str; 7] = ["flight", "hotel", "no undo", "car", "not car", "not hotel", "not flight"];

async fn deeds(db: &Db) -> Vec<String> {
    sqlx::query_scalar("select what from deed order by n").fetch_all(db.pool()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_run_is_compensated_in_reverse_order() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let worker = worker(&db, jobs![journey, does, compensates, fails, waits_at_the_gate]).await;
    let handle = journey("fails".into()).enqueue(&db).await.unwrap();
    let error = soon(handle.result()).await.unwrap_err();
    let ClientError::RunFailed { failure, .. } = error else { panic!("{error}") };
    assert_eq!(failure.message, "step `fails` failed");
    assert_eq!(deeds(&db).await, ALL_UNDONE);
    let keys: Vec<String> = handle.steps().await.unwrap().into_iter().map(|step| step.key).collect();
    for key in ["compensate[does]", "compensate[does#3]", "compensate[inner/does]"] {
        assert!(keys.iter().any(|known| known == key), "{key} is not in {keys:?}");
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn resumed_compensation_consumes_no_attempt() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    execute(&db, "insert into broken values ('hotel')").await;
    let worker = worker(&db, jobs![journey, does, compensates, fails, waits_at_the_gate]).await;
    let handle = journey("fails".into()).enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Blocked).await;
    execute(&db, "delete from broken").await;
    handle.resume().await.unwrap();
    soon(handle.result()).await.unwrap_err();
    assert_eq!(handle.info().await.unwrap().attempt, 1, "its code began once, its compensations twice");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_sleeping_waiting_or_running_run_is_compensated() {
    for then in ["sleeps", "waits", "works"] {
        let Fixture { db, database: _database } = Fixture::new().await;
        execute(&db, TABLES).await;
        let worker = worker(&db, jobs![journey, does, compensates, fails, waits_at_the_gate]).await;
        let handle = journey(then.into()).enqueue(&db).await.unwrap();
        eventually(async || deeds(&db).await.len(), |n| *n == 4).await;
        if then != "works" {
            until(&db, handle.id(), |info| info.state != RunState::Running).await;
        }
        assert_eq!(handle.cancel("not needed").await.unwrap(), Cancelled::Requested, "{then}");
        let error = soon(handle.result()).await.unwrap_err();
        let ClientError::RunCancelled { failure, .. } = error else { panic!("{error}") };
        assert_eq!(failure.message, "cancelled: not needed", "{then}");
        assert_eq!(deeds(&db).await, ALL_UNDONE, "{then}");
        assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.cancel").await, 0);
        worker.stop().await;
    }
}

static AT_WORK: Notify = Notify::const_new();

#[job]
async fn works_on() -> Result<()> {
    AT_WORK.notify_one();
    std::future::pending().await
}

#[workflow]
async fn books_and_works_on(wf: &Wf) -> Result<()> {
    let saga = wf.saga();
    saga.run(books(1), |n| unbooks(*n)).await?;
    Ok(wf.run(works_on()).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_starts_compensation_without_waiting_for_poll() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker_without_polls(&db, jobs![books_and_works_on, books, unbooks, works_on]).await;
    for _ in 0..3 {
        let handle = books_and_works_on().enqueue(&db).await.unwrap();
        AT_WORK.notified().await;
        let asleep = "select count(*) from runledger.worker where sleeping";
        eventually(async || scalar::<i64>(&db, asleep).await, |n_asleep| *n_asleep == 1).await;
        handle.cancel("on purpose").await.unwrap();
        soon(handle.result()).await.unwrap_err();
    }
    worker.stop().await;
}

#[job]
async fn books(n: u64) -> Result<u64> {
    Ok(n)
}

#[job]
async fn unbooks(n: u64) -> Result<()> {
    let _ = n;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_compensation_blocks_run_and_runs_again_after_resume() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    execute(&db, "insert into broken values ('hotel')").await;
    let worker = worker(&db, jobs![journey, does, compensates, fails, waits_at_the_gate]).await;
    let handle = journey("fails".into()).enqueue(&db).await.unwrap();
    let error = soon(handle.result()).await.unwrap_err();
    let ClientError::RunBlocked { failure, .. } = error else { panic!("{error}") };
    let expected = "step `compensate[inner/does]` could not take back what was done: hotel cannot be";
    assert!(failure.message.starts_with(expected), "{failure}");
    let info = handle.info().await.unwrap();
    assert!(info.compensating && info.state == RunState::Blocked);
    execute(&db, "delete from broken").await;
    handle.resume().await.unwrap();
    let error = soon(handle.result()).await.unwrap_err();
    assert!(matches!(error, ClientError::RunFailed { .. }), "{error}");
    assert_eq!(deeds(&db).await, ALL_UNDONE);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compensated_run_cannot_be_revived() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let worker = worker(&db, jobs![journey, does, compensates, fails, waits_at_the_gate]).await;
    let handle = journey("fails".into()).enqueue(&db).await.unwrap();
    assert!(soon(handle.result()).await.is_err());
    let error = handle.revive(RunState::Failed).await.unwrap_err();
    assert!(matches!(error, ClientError::CompensationsRan { .. }), "{error}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_ends_run_blocked_in_compensation_with_original_failure() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    execute(&db, "insert into broken values ('hotel')").await;
    let worker = worker(&db, jobs![journey, does, compensates, fails, waits_at_the_gate]).await;
    let handle = journey("fails".into()).enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Blocked).await;
    assert_eq!(handle.cancel("leave it").await.unwrap(), Cancelled::Now);
    let error = soon(handle.result()).await.unwrap_err();
    let ClientError::RunFailed { failure, .. } = error else { panic!("{error}") };
    assert_eq!(failure.message, "step `fails` failed", "it ends as it would have");
    assert_eq!(deeds(&db).await, ["flight", "hotel", "no undo", "car", "not car"]);
    worker.stop().await;
}

static RESERVED: AtomicUsize = AtomicUsize::new(0);
static RELEASED: AtomicUsize = AtomicUsize::new(0);

#[job]
async fn reserves() -> Result<()> {
    RESERVED.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

#[job]
async fn releases() -> Result<()> {
    RELEASED.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

#[workflow]
async fn reserves_in_vain(wf: &Wf) -> Result<()> {
    wf.saga().run(reserves(), |()| releases()).await?;
    wf.run(fails()).await?;
    Ok(())
}

/// Refuses the records of compensations while `broken` has a row.
const REFUSE: &str = "
    create function refuse() returns trigger language plpgsql as $$
    begin
        if new.key like 'compensate[%' and exists (select from public.broken) then
            raise exception 'refused' using errcode = 'check_violation';
        end if;
        return new;
    end $$;
    create trigger refuse before insert on runledger.step for each row execute function refuse()";

#[tokio::test(flavor = "multi_thread")]
async fn compensation_whose_record_is_refused_blocks_run() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, &format!("{TABLES}; {REFUSE}; insert into broken values ('step')")).await;
    let worker = worker(&db, jobs![reserves_in_vain, reserves, releases, fails]).await;
    let handle = reserves_in_vain().enqueue(&db).await.unwrap();
    let is_repeated = || RELEASED.load(Ordering::SeqCst) > 1;
    let info = until(&db, handle.id(), |info| info.state == RunState::Blocked || is_repeated()).await;
    assert!(info.error.as_ref().is_some_and(|error| error.to_string().contains("refused")), "{info:?}");
    assert_eq!((RESERVED.load(Ordering::SeqCst), RELEASED.load(Ordering::SeqCst)), (1, 1));
    execute(&db, "truncate broken").await;
    handle.resume().await.unwrap();
    assert!(matches!(soon(handle.result()).await, Err(ClientError::RunFailed { .. })));
    assert_eq!(RELEASED.load(Ordering::SeqCst), 2, "once more, because its record is missing");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_compensation_resumes_with_remaining_steps() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let mut handles = Vec::new();
    for _ in 0..12 {
        handles.push(journey("fails".into()).enqueue(&db).await.unwrap());
    }
    let one = worker(&db, jobs![journey, does, compensates, fails, waits_at_the_gate]).await;
    let two = worker(&db, jobs![journey, does, compensates, fails, waits_at_the_gate]).await;
    let compensating = "select count(*) from runledger.compensation";
    eventually(async || scalar::<i64>(&db, compensating).await, |n| *n > 0).await;
    let mut n_losses = 0;
    while scalar::<i64>(&db, "select count(*) from runledger.outcome").await < 12 {
        for handle in &handles {
            n_losses += i32::from(n_losses < 60 && take_away(&db, handle.id()).await);
        }
    }
    let twice = "select count(*) from (select what from deed group by what having count(*) <> 12) as wrong";
    assert_eq!(scalar::<i64>(&db, twice).await, 0, "after {n_losses} losses");
    for handle in &handles {
        assert!(matches!(soon(handle.result()).await, Err(ClientError::RunFailed { .. })));
    }
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_compensated_by_workflow_are_not_compensated_again() {
    for (then, completes) in [("compensates", true), ("compensates and fails", false)] {
        let Fixture { db, database: _database } = Fixture::new().await;
        execute(&db, TABLES).await;
        let worker = worker(&db, jobs![journey, does, compensates, fails, waits_at_the_gate]).await;
        let handle = journey(then.into()).enqueue(&db).await.unwrap();
        assert_eq!(soon(handle.result()).await.is_ok(), completes);
        let mut expected = vec!["flight", "hotel", "no undo", "car", "not car", "not flight"];
        if !completes {
            expected.push("not hotel");
        }
        assert_eq!(deeds(&db).await, expected, "{then}");
        worker.stop().await;
    }
}

/// The worker does not serve the job of the compensation.
#[tokio::test(flavor = "multi_thread")]
async fn compensation_without_code_blocks_run_and_names_its_job() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let worker = worker(&db, jobs![journey, does, fails, waits_at_the_gate]).await;
    let handle = journey("fails".into()).enqueue(&db).await.unwrap();
    let error = soon(handle.result()).await.unwrap_err();
    let ClientError::RunBlocked { failure, .. } = error else { panic!("{error}") };
    assert_eq!(failure.kind, FailureKind::Setup);
    assert!(failure.message.contains("no code for job `compensates`"), "{failure}");
    worker.stop().await;
}

/// Ends the session of the body at its first execution.
const KILL: &str = "select case when nextval('kills') = 1 then pg_terminate_backend(pg_backend_pid()) end";

#[workflow]
async fn keeps_books(wf: &Wf, point: u8, other: uuid::Uuid, #[inject] db: &Db) -> Result<i64> {
    let booked = wf.tx("book", |mut tx| async move {
        let n: i64 = sqlx::query_scalar("insert into deed (what) values ('booked') returning n::int8")
            .fetch_one(&mut *tx)
            .await?;
        if point == 0 {
            sqlx::query(KILL).execute(&mut *tx).await?;
        }
        does("follow-up".into()).enqueue(&mut *tx).await?;
        db.run(other).signal("booked", &n).send(&mut *tx).await?;
        if point == 1 {
            sqlx::query(KILL).execute(&mut *tx).await?;
        }
        Ok::<_, Error>(n)
    });
    Ok(booked.await?)
}

#[workflow]
async fn hears_of_it(wf: &Wf) -> Result<i64> {
    Ok(wf.signal("booked").await?)
}

/// A trigger that ends the session when it first fires.
fn killer(table: &str, when: &str) -> String {
    format!(
        "create function kill() returns trigger language plpgsql as $$ begin
             if nextval('public.kills') = 1 then perform pg_terminate_backend(pg_backend_pid()); end if; return null; end $$;
         create constraint trigger killer after insert on {table} {when} for each row execute function kill()"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn inline_transaction_killed_at_any_point_takes_effect_once() {
    for point in 0..=3 {
        let Fixture { db, database: _database } = Fixture::new().await;
        execute(&db, TABLES).await;
        match point {
            2 => execute(&db, &killer("runledger.step", "")).await,
            3 => execute(&db, &killer("deed", "deferrable initially deferred")).await,
            _ => {}
        }
        let app = App::new(db.clone()).with(jobs![keeps_books, hears_of_it]).provide(db.clone());
        let worker = app.timings(runledger::Timings::FAST).start().await.unwrap();
        let hears = hears_of_it().enqueue(&db).await.unwrap();
        let handle = keeps_books(point, hears.id()).enqueue(&db).await.unwrap();
        let n = soon(handle.result()).await.unwrap();
        assert_eq!(soon(hears.result()).await.unwrap(), n, "point {point}");
        let counts = "select array[(select count(*) from deed), (select count(*) from runledger.run where job = 'does'),
                      (select count(*) from runledger.signal), (select count(*) from runledger.step where key = 'book')]";
        assert_eq!(scalar::<Vec<i64>>(&db, counts).await, [1, 1, 1, 1], "point {point}");
        assert_ne!(scalar::<i64>(&db, "select last_value from kills").await, 1, "the session was ended once");
        worker.stop().await;
    }
}

#[workflow]
async fn gives_its_transaction_away(wf: &Wf) -> Result<()> {
    let given = tokio::sync::Mutex::new(None);
    Ok(wf
        .tx("book", |tx| {
            let given = &given;
            async move {
                *given.lock().await = Some(tx);
                Ok::<_, Error>(())
            }
        })
        .max_attempts(1)
        .await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn inline_transaction_given_away_fails_run_with_reason() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![gives_its_transaction_away]).await;
    let error = soon(gives_its_transaction_away().enqueue(&db).await.unwrap().result()).await.unwrap_err();
    let ClientError::RunFailed { failure, .. } = error else { panic!("{error}") };
    assert!(failure.to_string().contains("gave its transaction away"), "{failure}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_of_run_paused_before_compensation_keeps_compensation_pending() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let code = jobs![journey, does, compensates, fails, waits_at_the_gate];
    let first = worker(&db, code).await;
    let handle = journey("waits".into()).enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
    first.stop().await;
    assert_eq!(handle.cancel("enough").await.unwrap(), Cancelled::Requested);
    handle.pause("not yet").await.unwrap();
    assert_eq!(handle.cancel("enough").await.unwrap(), Cancelled::Requested);
    assert_eq!(handle.state().await.unwrap(), RunState::Paused, "no undo of it has failed");
    let second = worker(&db, code).await;
    handle.resume().await.unwrap();
    let error = soon(handle.result()).await.unwrap_err();
    assert!(matches!(error, ClientError::RunCancelled { .. }), "{error}");
    assert_eq!(deeds(&db).await, ALL_UNDONE);
    second.stop().await;
}

/// Builds a step that is refused, and never awaits it.
#[workflow(max_attempts = 1)]
async fn builds_one_wrongly(wf: &Wf) -> Result<()> {
    let saga = wf.saga();
    let refused = saga.run(does("hotel".into()).priority(1), |what| compensates(what.clone()));
    saga.run(does("flight".into()), |what| compensates(what.clone())).await?;
    drop(refused);
    saga.compensate().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn step_is_compensated_once_despite_refused_step_of_same_name() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let worker = worker(&db, jobs![builds_one_wrongly, does, compensates]).await;
    soon(builds_one_wrongly().enqueue(&db).await.unwrap().result()).await.unwrap();
    assert_eq!(deeds(&db).await, ["flight", "not flight"]);
    worker.stop().await;
}

#[job]
async fn compensate(what: String) -> Result<()> {
    drop(what);
    Ok(())
}

/// Has a step with the key of a compensation.
#[workflow(max_attempts = 1)]
async fn names_a_step_like_an_undo(wf: &Wf) -> Result<()> {
    wf.saga().run(does("flight".into()), |what| compensates(what.clone())).await?;
    wf.run(compensate("hotel".into()).key("does")).await?;
    Err(Error::terminal("no more"))
}

#[tokio::test(flavor = "multi_thread")]
async fn step_with_compensation_key_is_refused_and_compensation_still_runs() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let worker = worker(&db, jobs![names_a_step_like_an_undo, does, compensates, compensate]).await;
    let error = soon(names_a_step_like_an_undo().enqueue(&db).await.unwrap().result()).await.unwrap_err();
    assert_eq!(deeds(&db).await, ["flight", "not flight"]);
    let ClientError::RunFailed { failure, .. } = error else { panic!("{error}") };
    assert!(failure.to_string().contains("the key of one of the engine's own"), "{failure}");
    worker.stop().await;
}

#[job(max_attempts = 3, backoff = "1h..1h")]
async fn undoes_much_later() -> Result<()> {
    Err("not now".into())
}

#[job(max_attempts = 3, backoff = "700ms..700ms")]
async fn undoes_never() -> Result<()> {
    Err("not now".into())
}

#[workflow(max_attempts = 1)]
async fn is_undone_in_vain(wf: &Wf, later: bool) -> Result<()> {
    let saga = wf.saga();
    if later {
        saga.run(does("flight".into()), |_| undoes_much_later()).await?;
    } else {
        saga.run(does("flight".into()), |_| undoes_never()).await?;
    }
    Err(Error::terminal("no more"))
}

const N_TRIED: &str = "select count(*) from runledger.attempt where step_key = 'compensate[does]'";

#[tokio::test(flavor = "multi_thread")]
async fn compensation_waiting_for_retry_frees_its_slot() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let jobs = jobs![is_undone_in_vain, does, undoes_much_later, undoes_never, fails];
    let app = App::new(db.clone()).with(jobs).timings(runledger::Timings::FAST);
    let worker = app.concurrency(1).start().await.unwrap();
    let handle = is_undone_in_vain(true).enqueue(&db).await.unwrap();
    eventually(async || scalar::<i64>(&db, N_TRIED).await, |n| *n == 1).await;
    assert!(soon(fails().enqueue(&db).await.unwrap().result()).await.is_err());
    let info = until(&db, handle.id(), |info| info.cause.as_deref() == Some("slept")).await;
    assert!(info.compensating && info.state == RunState::Queued, "{info:?}");
    let told = handle.signal("value", &1).await;
    assert!(
        matches!(told, Err(ClientError::WrongState { state: RunState::Failed, verb: "signalled", .. })),
        "its code does not go on: {told:?}"
    );
    let handle = is_undone_in_vain(false).enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Blocked).await;
    // The last attempt parks the run with its failure.
    assert_eq!(scalar::<i64>(&db, N_TRIED).await, 1 + 2, "the tries are counted over the waits between them");
    worker.stop().await;
}

#[job(name = "sagas.unbooks.renamed", aliases = ["sagas.unbooks"])]
async fn unbooks_renamed(n: u64) -> Result<()> {
    let _ = n;
    Ok(())
}

#[workflow]
async fn is_taken_back_by_a_renamed_job(wf: &Wf) -> Result<()> {
    wf.saga().run(books(1), |n| unbooks_renamed(*n)).await?;
    Err(Error::terminal("no more"))
}

#[tokio::test(flavor = "multi_thread")]
async fn compensation_is_stored_under_oldest_name_of_its_job() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![is_taken_back_by_a_renamed_job, books, unbooks_renamed]).await;
    let handle = is_taken_back_by_a_renamed_job().enqueue(&db).await.unwrap();
    soon(handle.result()).await.unwrap_err();
    let of_steps =
        "select string_agg(coalesce(compensation ->> 'job', key), ' ' order by ordinal) from runledger.step";
    assert_eq!(scalar::<String>(&db, of_steps).await, "sagas.unbooks compensate[books]");
    worker.stop().await;
}

static N_UNDOS_BEGUN: AtomicUsize = AtomicUsize::new(0);
static UNDO_GATE: Semaphore = Semaphore::const_new(0);

#[job]
async fn unbooks_at_the_gate() -> Result<()> {
    N_UNDOS_BEGUN.fetch_add(1, Ordering::SeqCst);
    UNDO_GATE.acquire().await?.forget();
    Ok(())
}

#[workflow]
async fn waits_with_a_booking(wf: &Wf) -> Result<u32> {
    wf.saga().run(books(1), |_| unbooks_at_the_gate()).await?;
    Ok(wf.signal("never").await?)
}

/// Two cancels may overlap. The first starts the compensation. The second polled the run before
/// that, and stores its request afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn cancel_request_during_compensation_does_not_disturb_it() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![waits_with_a_booking, books, unbooks_at_the_gate]).await;
    let run = waits_with_a_booking().enqueue(&db).await.unwrap();
    until(&db, run.id(), |info| info.state == RunState::Waiting).await;
    assert_eq!(run.cancel("no").await.unwrap(), Cancelled::Requested);
    eventually(async || N_UNDOS_BEGUN.load(Ordering::SeqCst), |n| *n == 1).await;

    let claims = "select claims from runledger.lease";
    let n_claims: i32 = scalar(&db, claims).await;
    let late = "insert into runledger.cancel select run_id, 'late' from runledger.compensation;
        select runledger.notify('runledger_cancel', run_id::text) from runledger.compensation";
    execute(&db, late).await;
    let heartbeat = async || scalar::<String>(&db, "select heartbeat_at::text from runledger.worker").await;
    for _ in 0..3 {
        let before = heartbeat().await;
        eventually(heartbeat, |now| *now != before).await;
    }
    assert_eq!(scalar::<i32>(&db, claims).await, n_claims, "the attempt that compensates goes on");
    assert_eq!(N_UNDOS_BEGUN.load(Ordering::SeqCst), 1);

    execute(&db, "update runledger.lease set worker_id = worker_id + 1000").await;
    eventually(async || N_UNDOS_BEGUN.load(Ordering::SeqCst), |n| *n == 2).await;
    let crashes = "select crashes from runledger.lease";
    assert_eq!(scalar::<i32>(&db, crashes).await, 1, "a crash during the undo is no cancel");

    UNDO_GATE.add_permits(2);
    until(&db, run.id(), |info| info.state == RunState::Cancelled).await;
    eventually(async || scalar::<i64>(&db, "select count(*) from runledger.cancel").await, |n| *n == 0).await;
    worker.stop().await;
}
