//! An audit or an alert of an operator refuses how an attempt ended. The run keeps its state if the
//! database accepts it with another text. Otherwise it is blocked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use runledger::prelude::*;
use runledger::{RunState, Timings, Worker};
use runledger_tests::rows::{execute, scalar, soon, until, worker};
use runledger_tests::{Fixture, eventually};
use tokio::sync::Semaphore;
use uuid::Uuid;

/// Copies a text of each new row into a table whose column is too short for some of them.
async fn audit(db: &Db, table: &str, text: &str, limit: u32) {
    execute(
        db,
        &format!(
            "create table public.audit (text varchar({limit}));
             create function public.audit() returns trigger language plpgsql as
             $$ begin insert into public.audit values ({text}); return new; end $$;
             create trigger audit after insert on runledger.{table} for each row execute function public.audit()"
        ),
    )
    .await;
}

#[derive(Clone)]
struct Door(Arc<Semaphore>);

impl Door {
    fn closed() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }
}

#[derive(Clone, Default)]
struct Compensations(Arc<AtomicU32>);

#[job]
async fn refused_charges() -> Result<()> {
    Ok(())
}

#[job(max_attempts = 1)]
async fn refused_refunds(#[inject] compensations: &Compensations) -> Result<()> {
    compensations.0.fetch_add(1, Ordering::SeqCst);
    Err("the bank refunds nothing today; ".repeat(20).into())
}

#[job]
async fn refused_refunds_at_once(#[inject] compensations: &Compensations) -> Result<()> {
    compensations.0.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

#[workflow(max_attempts = 1)]
async fn refused_saga(wf: &Wf) -> Result<()> {
    wf.saga().run(refused_charges(), |()| refused_refunds()).await?;
    Err("the shop is closed".into())
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_compensation_blocks_run_without_repeat_when_trigger_refuses_error() {
    let Fixture { db, database: _database } = Fixture::new().await;
    audit(&db, "waiting", "new.error ->> 'message'", 60).await;
    let compensations = Compensations::default();
    let app = App::new(db.clone()).with(jobs![refused_saga, refused_charges, refused_refunds]);
    let worker = app.provide(compensations.clone()).timings(Timings::FAST).start().await.unwrap();
    let run = refused_saga().enqueue(&db).await.unwrap();
    until(&db, run.id(), |info| info.state == RunState::Blocked).await;
    assert_eq!(compensations.0.load(Ordering::SeqCst), 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_run_is_blocked_when_trigger_refuses_reason() {
    let Fixture { db, database: _database } = Fixture::new().await;
    audit(&db, "waiting", "new.error ->> 'message'", 40).await;
    let run = refused_charges().enqueue(&db).await.unwrap();
    execute(&db, r#"update runledger.run set options = '{"delay_us": "x"}'"#).await;
    let worker = worker(&db, jobs![refused_charges]).await;
    until(&db, run.id(), |info| info.state == RunState::Blocked).await;
    worker.stop().await;
}

#[workflow(max_attempts = 1)]
async fn refused_waits_at_a_door(wf: &Wf) -> Result<()> {
    wf.saga().run(refused_charges(), |()| refused_refunds_at_once()).await?;
    Ok(wf.run(refused_passes_a_door()).await?)
}

#[job]
async fn refused_passes_a_door(#[inject] door: &Door) -> Result<()> {
    door.0.acquire().await?.forget();
    Ok(())
}

/// Starts a run that waits at the door, after its first step.
async fn at_the_door(db: &Db, door: &Door, compensations: &Compensations) -> (Worker, Uuid) {
    let worker = worker_at(db, door, compensations).await;
    let run = refused_waits_at_a_door().enqueue(db).await.unwrap();
    let steps = "select count(*) from runledger.step";
    eventually(async || scalar::<i64>(db, steps).await, |n_steps| *n_steps == 1).await;
    (worker, run.id())
}

async fn worker_at(db: &Db, door: &Door, compensations: &Compensations) -> Worker {
    let app = App::new(db.clone())
        .with(jobs![refused_waits_at_a_door, refused_charges, refused_passes_a_door, refused_refunds_at_once])
        .provide(door.clone())
        .provide(compensations.clone());
    app.timings(Timings::FAST).start().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn run_with_refused_pause_is_blocked_and_completes_after_resume() {
    let Fixture { db, database: _database } = Fixture::new().await;
    audit(&db, "waiting", "case new.state when 'paused' then new.reason end", 20).await;
    let (door, compensations) = (Door::closed(), Compensations::default());
    let (worker, run_id) = at_the_door(&db, &door, &compensations).await;
    db.run(run_id).pause("the tax office asked for a hold until Tuesday").await.unwrap();
    until(&db, run_id, |info| info.state == RunState::Blocked).await;
    door.0.add_permits(2);
    db.run(run_id).resume().await.unwrap();
    until(&db, run_id, |info| info.state == RunState::Completed).await;
    assert_eq!(compensations.0.load(Ordering::SeqCst), 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_that_stopping_worker_cannot_requeue_completes_on_next_worker() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let (door, compensations) = (Door::closed(), Compensations::default());
    let (worker, run_id) = at_the_door(&db, &door, &compensations).await;
    execute(
        &db,
        "create function public.freeze() returns trigger language plpgsql as
         $$ begin raise exception 'no new work during the maintenance'; end $$;
         create trigger freezes before insert on runledger.ready for each row execute function public.freeze()",
    )
    .await;
    worker.stop().await;
    execute(&db, "drop trigger freezes on runledger.ready").await;
    door.0.add_permits(2);
    let worker = worker_at(&db, &door, &compensations).await;
    until(&db, run_id, |info| info.state == RunState::Completed).await;
    assert_eq!(compensations.0.load(Ordering::SeqCst), 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_run_ends_cancelled_when_trigger_refuses_reason() {
    let Fixture { db, database: _database } = Fixture::new().await;
    audit(&db, "outcome", "new.error::text", 250).await;
    let (door, compensations) = (Door::closed(), Compensations::default());
    let (worker, run_id) = at_the_door(&db, &door, &compensations).await;
    db.run(run_id).cancel(&"the customer asked for it; ".repeat(12)).await.unwrap();
    until(&db, run_id, |info| info.state == RunState::Cancelled).await;
    assert_eq!(compensations.0.load(Ordering::SeqCst), 1);
    worker.stop().await;
}

#[workflow(max_attempts = 1)]
async fn refused_fails_at_length(wf: &Wf) -> Result<()> {
    wf.saga().run(refused_charges(), |()| refused_refunds_at_once()).await?;
    Err("the card was declined; ".repeat(20).into())
}

#[workflow]
async fn refused_asks(wf: &Wf) -> Result<bool> {
    Ok(wf.start(refused_fails_at_length()).await?.result().await.is_err())
}

#[tokio::test(flavor = "multi_thread")]
async fn saga_with_refused_failure_compensates_once_and_fails() {
    let Fixture { db, database: _database } = Fixture::new().await;
    audit(&db, "outcome", "new.error::text", 250).await;
    let compensations = Compensations::default();
    let app = App::new(db.clone())
        .with(jobs![refused_asks, refused_fails_at_length, refused_charges, refused_refunds_at_once])
        .provide(compensations.clone());
    let worker = app.timings(Timings::FAST).start().await.unwrap();
    let run = refused_asks().enqueue(&db).await.unwrap();
    assert!(soon(run.result()).await.unwrap());
    assert_eq!(compensations.0.load(Ordering::SeqCst), 1);
    worker.stop().await;
}

#[job(max_attempts = 2, backoff = "10ms..10ms")]
async fn refused_fails_once(#[inject] compensations: &Compensations) -> Result<()> {
    match compensations.0.fetch_add(1, Ordering::SeqCst) {
        0 => Err("the gateway did not answer; ".repeat(20).into()),
        _ => Ok(()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attempt_with_refused_failure_is_retried() {
    let Fixture { db, database: _database } = Fixture::new().await;
    audit(&db, "attempt", "new.error ->> 'message'", 250).await;
    let app = App::new(db.clone()).with(jobs![refused_fails_once]).provide(Compensations::default());
    let worker = app.timings(Timings::FAST).start().await.unwrap();
    let run = refused_fails_once().enqueue(&db).await.unwrap();
    soon(run.result()).await.unwrap();
    worker.stop().await;
}

#[workflow(max_attempts = 1)]
async fn refused_output(wf: &Wf) -> Result<String> {
    wf.saga().run(refused_charges(), |()| refused_refunds_at_once()).await?;
    Ok("x".repeat(300))
}

#[tokio::test(flavor = "multi_thread")]
async fn failure_hook_runs_once_for_run_with_refused_output() {
    let Fixture { db, database: _database } = Fixture::new().await;
    audit(&db, "outcome", "new.output::text", 250).await;
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let app = App::new(db.clone())
        .with(jobs![refused_output, refused_charges, refused_refunds_at_once])
        .provide(Compensations::default())
        .on_failure(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            async {}
        });
    let worker = app.timings(Timings::FAST).start().await.unwrap();
    let run = refused_output().enqueue(&db).await.unwrap();
    until(&db, run.id(), |info| info.state == RunState::Failed).await;
    worker.stop().await;
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[job(max_attempts = 1)]
async fn refused_declines() -> Result<()> {
    Err("the card was declined".into())
}

#[tokio::test(flavor = "multi_thread")]
async fn run_with_refused_first_outcome_keeps_failure_as_cause() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(
        &db,
        "create sequence public.ends;
         create function public.once() returns trigger language plpgsql as
         $$ begin if nextval('public.ends') = 1 then raise exception 'the audit is down'; end if; return new; end $$;
         create trigger once before insert on runledger.outcome for each row execute function public.once()",
    )
    .await;
    let run = refused_declines().enqueue(&db).await.unwrap();
    let worker = worker(&db, jobs![refused_declines]).await;
    let error = until(&db, run.id(), |info| info.state == RunState::Failed).await.error.unwrap();
    assert!(error.message.contains("the audit is down"), "{error:?}");
    assert!(error.causes.iter().any(|cause| cause.contains("declined")), "{error:?}");
    worker.stop().await;
}

/// Leases all ready runs to a worker that does not exist.
const ORPHANS: &str = "with taken as (delete from runledger.ready returning run_id)
    insert into runledger.lease (run_id, token, worker_id, attempt, crashes, claims, claimed_at)
    select run_id, gen_random_uuid(), 1, 1, 0, 1, now() from taken";

#[tokio::test(flavor = "multi_thread")]
async fn orphan_completes_when_trigger_refuses_crash_error() {
    let Fixture { db, database: _database } = Fixture::new().await;
    audit(&db, "attempt", "new.error ->> 'message'", 60).await;
    let run = refused_charges().enqueue(&db).await.unwrap();
    execute(&db, ORPHANS).await;
    let worker = worker(&db, jobs![refused_charges]).await;
    soon(run.result()).await.unwrap();
    worker.stop().await;
}

#[workflow]
async fn refused_awaits_a_word(wf: &Wf) -> Result<String> {
    Ok(wf.signal("word").await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn run_with_refused_wait_is_blocked_and_completes_after_resume() {
    let Fixture { db, database: _database } = Fixture::new().await;
    audit(&db, "waiting", "case when new.error is null then repeat('x', 30) end", 20).await;
    let app = App::new(db.clone()).with(jobs![refused_awaits_a_word]).idle_residency(Duration::ZERO);
    let worker = app.timings(Timings::FAST).start().await.unwrap();
    let run = refused_awaits_a_word().enqueue(&db).await.unwrap();
    let error = until(&db, run.id(), |info| info.state == RunState::Blocked).await.error.unwrap();
    assert!(error.message.starts_with("the wait of this run cannot be stored"), "{error:?}");
    assert!(error.message.contains("too long"), "{error:?}");
    execute(&db, "drop trigger audit on runledger.waiting").await;
    db.run(run.id()).resume().await.unwrap();
    db.run(run.id()).signal("word", &"on").await.unwrap();
    assert_eq!(soon(run.result()).await.unwrap(), "on");
    worker.stop().await;
}

/// Refuses that runs end, and that they are blocked.
const REFUSES: &str = "create function public.refuse() returns trigger language plpgsql as
     $$ begin raise exception 'no end, and no block'; end $$;
     create trigger refuses before insert on runledger.outcome for each row execute function public.refuse();
     create trigger refuses before insert on runledger.waiting for each row execute function public.refuse()";

const REFUSES_NO_MORE: &str = "drop function public.refuse() cascade;
     update runledger.ready set ready_at = now() - interval '1 s'";

/// The runs that return to their queue because nothing else of them can be stored.
async fn until_one_rests(db: &Db) {
    let rests = "select count(*) from runledger.ready where ready_at > now() + interval '15 s'";
    eventually(async || scalar::<i64>(db, rests).await, |n_runs| *n_runs == 1).await;
}

/// A lease would keep a permit until maintenance finds it.
#[tokio::test(flavor = "multi_thread")]
async fn run_with_refused_outcome_and_block_is_requeued_with_delay() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, REFUSES).await;
    let run = refused_charges().enqueue(&db).await.unwrap();
    let worker = worker(&db, jobs![refused_charges]).await;
    until_one_rests(&db).await;
    execute(&db, REFUSES_NO_MORE).await;
    soon(run.result()).await.unwrap();
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_orphan_with_refused_outcome_is_requeued_with_delay() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let run = refused_charges().enqueue(&db).await.unwrap();
    execute(&db, ORPHANS).await;
    execute(&db, REFUSES).await;
    db.run(run.id()).cancel("no longer needed").await.unwrap();
    let worker = worker(&db, jobs![refused_charges]).await;
    until_one_rests(&db).await;
    execute(&db, REFUSES_NO_MORE).await;
    until(&db, run.id(), |info| info.state == RunState::Cancelled).await;
    worker.stop().await;
}

/// Maintenance waits 9 s for one call here, and all tries take longer.
#[tokio::test(flavor = "multi_thread")]
async fn cancelled_orphan_is_requeued_with_delay_despite_slow_refusals() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let run = refused_charges().enqueue(&db).await.unwrap();
    execute(&db, ORPHANS).await;
    execute(&db, &REFUSES.replace("raise", "perform pg_sleep(1.9); raise")).await;
    db.run(run.id()).cancel("no longer needed").await.unwrap();
    let worker = worker(&db, jobs![refused_charges]).await;
    until_one_rests(&db).await;
    worker.stop().await;
}

/// Other runs of dead workers wait for this call of maintenance.
#[tokio::test(flavor = "multi_thread")]
async fn maintenance_limits_attempts_per_orphan_across_many_slow_refusals() {
    let Fixture { db, database: _database } = Fixture::new().await;
    for priority in 0..32 {
        refused_charges().priority(priority).enqueue(&db).await.unwrap();
        execute(&db, &format!("create sequence public.try_{priority}")).await;
    }
    execute(&db, ORPHANS).await;
    execute(
        &db,
        "create function public.refuse() returns trigger language plpgsql as $$ begin
             perform nextval('public.try_' || new.priority), pg_sleep(0.15);
             raise exception 'no return';
         end $$;
         create trigger refuses before insert on runledger.ready for each row execute function public.refuse()",
    )
    .await;
    let worker = worker(&db, jobs![refused_charges]).await;
    let tried = "select coalesce(sum(last_value), 0)::bigint from pg_sequences
                 where sequencename like 'try_%' having count(last_value) = 32";
    let tried = format!("select coalesce(({tried}), 0)");
    let n_tries = eventually(async || scalar::<i64>(&db, &tried).await, |n_tries| *n_tries > 0).await;
    // All four tries of the first runs of a call, and two of the others. A call takes 4 s.
    assert!(n_tries < 32 * 3, "{n_tries}");
    worker.stop().await;
}

/// The try of all orphans at once takes longer than a turn of their recovery, and then fails.
#[tokio::test(flavor = "multi_thread")]
async fn slowly_refused_orphan_gets_at_most_three_recovery_attempts() {
    let Fixture { db, database: _database } = Fixture::new().await;
    for priority in [0; 31].into_iter().chain([1]) {
        refused_charges().priority(priority).enqueue(&db).await.unwrap();
    }
    execute(&db, ORPHANS).await;
    execute(
        &db,
        "create sequence public.try;
         create function public.refuse() returns trigger language plpgsql as
         $$ begin perform nextval('public.try'), pg_sleep(4.5); raise exception 'no return'; end $$;
         create trigger refuses before insert on runledger.ready for each row
         when (new.priority = 1) execute function public.refuse()",
    )
    .await;
    let worker = worker(&db, jobs![refused_charges]).await;
    let ended = "select count(*) from runledger.outcome";
    eventually(async || scalar::<i64>(&db, ended).await, |n_ended| *n_ended == 31).await;
    // One with all others, and two when the run is tried alone.
    let n_tries: i64 = scalar(&db, "select last_value from public.try").await;
    assert!(n_tries <= 3, "{n_tries}");
    worker.stop().await;
}

/// The run-by-run work for all orphans takes longer than a turn, because each statement takes long.
#[tokio::test(flavor = "multi_thread")]
async fn orphans_are_recovered_in_batch_once_refused_one_is_known() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let priorities = [1].into_iter().chain([0; 299]);
    let calls: Vec<_> = priorities.map(|priority| refused_charges().priority(priority)).collect();
    runledger::enqueue_all(calls, &db).await.unwrap();
    execute(&db, ORPHANS).await;
    execute(
        &db,
        "create sequence public.tries;
         create function public.refuse() returns trigger language plpgsql as
         $$ begin raise exception 'no return'; end $$;
         create trigger refuses before insert on runledger.ready for each row
         when (new.priority = 1) execute function public.refuse();
         create function public.delay() returns trigger language plpgsql as
         $$ begin perform nextval('public.tries'), pg_sleep(0.03); return null; end $$;
         create trigger delays before insert on runledger.ready for each statement execute function public.delay()",
    )
    .await;
    let worker = worker(&db, jobs![refused_charges]).await;
    let ended = "select count(*) from runledger.outcome";
    eventually(async || scalar::<i64>(&db, ended).await, |n_ended| *n_ended == 299).await;
    // One turn has time for about 130. Without the try of all at once, each run needs its own.
    let n_tries: i64 = scalar(&db, "select last_value from public.tries").await;
    assert!(n_tries < 250, "{n_tries}");
    worker.stop().await;
}

#[workflow]
async fn refused_ends_await_a_child(wf: &Wf) -> Result<String> {
    let child = wf.start(refused_awaits_a_word()).await?;
    Ok(child.result().await?)
}

/// A call of maintenance that lasts until its limit for replies reaches nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn lost_wake_up_is_repaired_despite_many_slow_refusals() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let app = || {
        let app = App::new(db.clone()).with(jobs![refused_ends_await_a_child, refused_awaits_a_word]);
        app.timings(Timings::FAST).idle_residency(Duration::ZERO)
    };
    let worker = app().start().await.unwrap();
    let parent = refused_ends_await_a_child().enqueue(&db).await.unwrap();
    let waiting = "select count(*) from runledger.waiting";
    eventually(async || scalar::<i64>(&db, waiting).await, |n_runs| *n_runs == 2).await;
    worker.stop().await;
    // The child ended, but its worker died before it woke the parent.
    execute(
        &db,
        "with ended as (delete from runledger.waiting where cardinality(wait_signals) > 0 returning run_id)
         insert into runledger.outcome (run_id, state, output, attempt) select run_id, 'completed', '\"on\"', 1 from ended;
         update runledger.waiting set since = now() - interval '1 minute'",
    )
    .await;
    for _ in 0..80 {
        refused_charges().enqueue(&db).await.unwrap();
    }
    execute(&db, ORPHANS).await;
    execute(
        &db,
        "create function public.refuse() returns trigger language plpgsql as
         $$ begin perform pg_sleep(0.5); raise exception 'no return'; end $$;
         create trigger refuses before insert on runledger.ready for each row
         when (new.cause = 'crashed') execute function public.refuse()",
    )
    .await;
    let worker = app().start().await.unwrap();
    assert_eq!(soon(parent.result()).await.unwrap(), "on");
    worker.stop().await;
}

/// Leases the ready run to a dead worker in which it was on trial, as before its fifth crash.
const ON_TRIAL: &str = "with taken as (delete from runledger.ready returning run_id),
         dead as (
             insert into runledger.worker (name, version, session_name, jobs, queues, state, died_at, died_why, trial)
             select 'gone', '1', 'gone', '{}', '{}', 'dead', now(), 'its lease was over', run_id from taken
             returning worker_id
         )
     insert into runledger.lease (run_id, token, worker_id, attempt, crashes, claims, claimed_at)
     select run_id, gen_random_uuid(), worker_id, 1, 4, 5, now() from taken, dead";

/// In its queue it would crash another worker.
#[tokio::test(flavor = "multi_thread")]
async fn run_with_five_crashes_never_executes_while_block_is_refused() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let executions = Compensations::default();
    let run = refused_refunds_at_once().enqueue(&db).await.unwrap();
    execute(&db, ON_TRIAL).await;
    execute(&db, "create sequence public.try").await;
    execute(&db, &REFUSES.replace("raise", "perform nextval('public.try'); raise")).await;
    let app = App::new(db.clone()).with(jobs![refused_refunds_at_once]).provide(executions.clone());
    let worker = app.timings(Timings::FAST).start().await.unwrap();
    // A round of maintenance refuses three settlements at most.
    let n_tries = "select last_value from public.try";
    eventually(async || scalar::<i64>(&db, n_tries).await, |n_tries| *n_tries > 3).await;
    execute(&db, "drop function public.refuse() cascade").await;
    let info = until(&db, run.id(), |info| info.state == RunState::Blocked).await;
    assert_eq!((executions.0.load(Ordering::SeqCst), info.crashes), (0, 5));
    worker.stop().await;
}
