//! An operator's change to the engine's tables affects only the changed runs: triggers that fail
//! with the error of another server, and locked rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::future::join_all;
use runledger::prelude::*;
use runledger::{Cancelled, Graph, RunState, Timings, Worker};
use runledger_tests::rows::{LONG, execute, scalar, soon, until, worker};
use runledger_tests::{Fixture, eventually};
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::limits::Heard;

/// Codes that a foreign table can pass on. The server itself uses them for its own locks, limits
/// and shutdown, for a full disk or too few connections, while it is read-only, and for conflicts.
const CODES: [&str; 11] =
    ["55P03", "57014", "25P03", "08006", "57P01", "58030", "53100", "53300", "25006", "40001", "40P01"];

/// One code of each class: an outage, a read-only server, and a conflict.
const ONE_OF_EACH: [&str; 3] = ["58030", "25006", "40001"];

#[job]
async fn triggers_says(word: String) -> Result<String> {
    Ok(word)
}

/// Leases all ready runs to a worker that does not exist.
const ORPHANS: &str = "with taken as (delete from runledger.ready returning run_id)
    insert into runledger.lease (run_id, token, worker_id, attempt, crashes, claims, claimed_at)
    select run_id, gen_random_uuid(), 1, 1, 0, 1, now() from taken";

fn ids<T>(runs: &[RunHandle<T>]) -> Vec<Uuid> {
    runs.iter().map(RunHandle::id).collect()
}

/// Refuses rows of these runs in `table` with this code, while the runs are in `poison`.
async fn refuse(db: &Db, table: &str, code: &str, runs: &[Uuid]) {
    poison(db, table, &format!("raise exception 'elsewhere' using errcode = '{code}'"), runs).await;
}

/// Executes a statement for rows of these runs in `table`, while the runs are in `poison`.
async fn poison(db: &Db, table: &str, statement: &str, runs: &[Uuid]) {
    let runs: Vec<String> = runs.iter().map(|run_id| format!("('{run_id}')")).collect();
    let trigger = format!(
        "create table public.poison (run_id uuid); insert into public.poison values {};
         create function public.refuse() returns trigger language plpgsql as $$
         begin
             if exists (select from public.poison where run_id = new.run_id) then
                 {statement};
             end if;
             return new;
         end $$;
         create trigger refuses before insert on runledger.{table} for each row execute function public.refuse()",
        runs.join(", ")
    );
    execute(db, &trigger).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_outcome_delays_only_its_run_for_every_error_code() {
    join_all(CODES.map(async |code| {
        let Fixture { db, database: _database } = Fixture::new().await;
        let poison = triggers_says("poison".into()).enqueue(&db).await.unwrap();
        refuse(&db, "outcome", code, &[poison.id()]).await;
        let mut others = Vec::new();
        for _ in 0..10 {
            others.push(triggers_says("other".into()).enqueue(&db).await.unwrap());
        }
        let worker = worker(&db, jobs![triggers_says]).await;
        for other in others {
            assert_eq!(soon(other.result()).await.unwrap(), "other", "{code}");
        }
        let later = triggers_says("later".into()).enqueue(&db).await.unwrap();
        assert_eq!(soon(later.result()).await.unwrap(), "later", "{code}");
        execute(&db, "delete from public.poison").await;
        assert_eq!(soon(poison.result()).await.unwrap(), "poison", "{code}");
        worker.stop().await;
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn orphans_refused_by_trigger_do_not_delay_other_orphans() {
    join_all(CODES.map(async |code| {
        let Fixture { db, database: _database } = Fixture::new().await;
        let mut runs = Vec::new();
        for _ in 0..6 {
            runs.push(triggers_says("back".into()).enqueue(&db).await.unwrap());
        }
        execute(&db, ORPHANS).await;
        // Two in a row must not look like a locked table.
        refuse(&db, "ready", code, &ids(&runs[1..3])).await;
        let worker = worker(&db, jobs![triggers_says]).await;
        for run in [&runs[0], &runs[3], &runs[4], &runs[5]] {
            assert_eq!(soon(run.result()).await.unwrap(), "back", "{code}");
        }
        assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.lease").await, 2);
        execute(&db, "delete from public.poison").await;
        for run in &runs[1..3] {
            until(&db, run.id(), |info| info.state == RunState::Completed).await;
        }
        worker.stop().await;
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_deadline_cancel_does_not_delay_other_deadlines() {
    join_all(ONE_OF_EACH.map(async |code| {
        let Fixture { db, database: _database } = Fixture::new().await;
        let mut runs = Vec::new();
        for _ in 0..10 {
            let run = triggers_says("late".into()).delay(LONG * 10).deadline(LONG);
            runs.push(run.enqueue(&db).await.unwrap());
        }
        refuse(&db, "outcome", code, &ids(&runs[..3])).await;
        execute(&db, "update runledger.deadline set deadline_at = now() - interval '1 hour'").await;
        let worker = worker(&db, jobs![triggers_says]).await;
        for run in &runs[3..] {
            until(&db, run.id(), |info| info.state == RunState::Cancelled).await;
        }
        execute(&db, "delete from public.poison").await;
        for run in &runs[..3] {
            until(&db, run.id(), |info| info.state == RunState::Cancelled).await;
        }
        worker.stop().await;
    }))
    .await;
}

#[workflow]
async fn triggers_waits_a_moment(wf: &Wf) -> Result<()> {
    wf.signal::<u32>("never").timeout(Duration::from_secs(3)).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_wait_timeout_does_not_delay_other_waits() {
    join_all(ONE_OF_EACH.map(async |code| {
        let Fixture { db, database: _database } = Fixture::new().await;
        let mut runs = Vec::new();
        for _ in 0..10 {
            runs.push(triggers_waits_a_moment().enqueue(&db).await.unwrap());
        }
        let (kept, others) = runs.split_at(3);
        refuse(&db, "ready", code, &ids(kept)).await;
        let app = App::new(db.clone()).with(jobs![triggers_waits_a_moment]).timings(Timings::FAST);
        let worker = app.idle_residency(Duration::ZERO).start().await.unwrap();
        for run in others {
            soon(run.result()).await.unwrap();
        }
        execute(&db, "delete from public.poison").await;
        for run in kept {
            soon(run.result()).await.unwrap();
        }
        worker.stop().await;
    }))
    .await;
}

const END_THE_SESSION: &str = "perform pg_terminate_backend(pg_backend_pid())";

#[tokio::test(flavor = "multi_thread")]
async fn outcome_whose_trigger_ends_session_delays_only_its_run() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let killer = triggers_says("killer".into()).enqueue(&db).await.unwrap();
    poison(&db, "outcome", END_THE_SESSION, &[killer.id()]).await;
    let mut others = Vec::new();
    for _ in 0..10 {
        others.push(triggers_says("other".into()).enqueue(&db).await.unwrap());
    }
    let worker = worker(&db, jobs![triggers_says]).await;
    for other in others {
        assert_eq!(soon(other.result()).await.unwrap(), "other");
    }
    let later = triggers_says("later".into()).enqueue(&db).await.unwrap();
    assert_eq!(soon(later.result()).await.unwrap(), "later");
    execute(&db, "delete from public.poison").await;
    assert_eq!(soon(killer.result()).await.unwrap(), "killer");
    worker.stop().await;
}

/// Runs on one thread, because the subscriber is bound to the thread.
#[tokio::test]
async fn orphan_whose_trigger_ends_session_is_logged_and_delays_none() {
    let heard = Heard::default();
    let _hearing = heard.listen();
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.push(triggers_says("back".into()).enqueue(&db).await.unwrap());
    }
    execute(&db, ORPHANS).await;
    poison(&db, "ready", END_THE_SESSION, &[runs[1].id()]).await;
    let worker = worker(&db, jobs![triggers_says]).await;
    for run in [&runs[0], &runs[2], &runs[3]] {
        assert_eq!(soon(run.result()).await.unwrap(), "back");
    }
    let named = async || heard.lines_with("lost its session at a run");
    let named = eventually(named, |named| !named.is_empty()).await;
    assert!(named.iter().all(|line| line.contains(&runs[1].id().to_string())), "{named:#?}");
    execute(&db, "delete from public.poison").await;
    until(&db, runs[1].id(), |info| info.state == RunState::Completed).await;
    worker.stop().await;
}

#[derive(Clone)]
struct Door(Arc<Semaphore>);

#[job]
async fn triggers_ends_when_told(#[inject] door: &Door) -> Result<()> {
    door.0.acquire().await?.forget();
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_complete_while_leases_of_other_runs_are_locked() {
    const LOCKED: u32 = 6;
    join_all([Timings::FAST, Timings::default()].map(async |timings| {
        let Fixture { db, database: _database } = Fixture::new().await;
        let door = Door(Arc::new(Semaphore::new(0)));
        let app = App::new(db.clone()).with(jobs![triggers_says, triggers_ends_when_told]);
        let worker = app.provide(door.clone()).timings(timings).start().await.unwrap();
        let mut locked = Vec::new();
        for _ in 0..LOCKED {
            locked.push(triggers_ends_when_told().enqueue(&db).await.unwrap());
        }
        let leases = "select count(*) from runledger.lease";
        eventually(async || scalar::<i64>(&db, leases).await, |n_leases| *n_leases == i64::from(LOCKED))
            .await;
        let mut holder = db.begin().await.unwrap();
        sqlx::query("select from runledger.lease for update").execute(&mut *holder).await.unwrap();
        door.0.add_permits(LOCKED as usize);
        for _ in 0..20 {
            let other = triggers_says("other".into()).enqueue(&db).await.unwrap();
            assert_eq!(soon(other.result()).await.unwrap(), "other");
        }
        assert_eq!(scalar::<i64>(&db, leases).await, i64::from(LOCKED));
        drop(holder);
        for run in locked {
            soon(run.result()).await.unwrap();
        }
        worker.stop().await;
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_stopped_after_table_lock_records_every_completed_run() {
    const RUNS: u32 = 100;
    let Fixture { db, database: _database } = Fixture::new().await;
    let door = Door(Arc::new(Semaphore::new(0)));
    let app = App::new(db.clone()).with(jobs![triggers_ends_when_told]).provide(door.clone());
    let worker = app.start().await.unwrap();
    for _ in 0..RUNS {
        triggers_ends_when_told().enqueue(&db).await.unwrap();
    }
    let leases = "select count(*) from runledger.lease";
    eventually(async || scalar::<i64>(&db, leases).await, |n_leases| *n_leases == i64::from(RUNS)).await;
    let mut holder = db.begin().await.unwrap();
    sqlx::query("lock table runledger.outcome").execute(&mut *holder).await.unwrap();
    door.0.add_permits(RUNS as usize);
    // Long enough for the writer to set all of them aside.
    tokio::time::sleep(Duration::from_secs(8)).await;
    drop(holder);
    worker.stop().await;
    let ended = "select count(*) from runledger.outcome where state = 'completed'";
    assert_eq!(scalar::<i64>(&db, ended).await, i64::from(RUNS));
}

#[derive(Clone, Default)]
struct Bodies(Arc<AtomicU32>);

#[job(max_attempts = 1)]
async fn triggers_counts(#[inject] bodies: &Bodies) -> Result<u32> {
    Ok(bodies.0.fetch_add(1, Ordering::SeqCst))
}

#[job(max_attempts = 1)]
async fn triggers_counts_in_a_transaction(#[inject] bodies: &Bodies, #[inject] _tx: &mut Tx) -> Result<u32> {
    Ok(bodies.0.fetch_add(1, Ordering::SeqCst))
}

#[job(max_attempts = 1)]
async fn triggers_fails() -> Result<()> {
    Err("the card was declined".into())
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_run_keeps_original_failure_as_cause() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let run = triggers_fails().enqueue(&db).await.unwrap();
    refuse(&db, "outcome", "P0001", &[run.id()]).await;
    let worker = worker(&db, jobs![triggers_fails]).await;
    let error = until(&db, run.id(), |info| info.state == RunState::Blocked).await.error.unwrap();
    assert!(error.message.contains("elsewhere"), "{error:?}");
    assert!(error.causes.iter().any(|cause| cause.contains("the card was declined")), "{error:?}");
    worker.stop().await;
}

#[job(max_attempts = 1)]
async fn triggers_fails_at_length() -> Result<()> {
    Err("the card was declined; ".repeat(20).into())
}

#[tokio::test(flavor = "multi_thread")]
async fn run_fails_with_trigger_error_when_failure_is_too_long() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(
        &db,
        "create table public.audit (error varchar(250));
         create function public.audit() returns trigger language plpgsql as
         $$ begin insert into public.audit values (new.error::text); return new; end $$;
         create trigger audit after insert on runledger.outcome for each row execute function public.audit()",
    )
    .await;
    let run = triggers_fails_at_length().enqueue(&db).await.unwrap();
    let worker = worker(&db, jobs![triggers_fails_at_length]).await;
    let ended =
        until(&db, run.id(), |info| [RunState::Failed, RunState::Blocked].contains(&info.state)).await;
    assert_eq!(ended.state, RunState::Failed, "{:?}", ended.error);
    assert!(ended.error.unwrap().message.contains("too long"));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_with_every_outcome_refused_is_blocked_without_second_execution() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let bodies = Bodies::default();
    let ids = [
        triggers_counts().enqueue(&db).await.unwrap().id(),
        triggers_counts_in_a_transaction().enqueue(&db).await.unwrap().id(),
    ];
    poison(&db, "outcome", "raise exception 'no end for you'", &ids).await;
    let app = App::new(db.clone()).with(jobs![triggers_counts, triggers_counts_in_a_transaction]);
    let worker = app.provide(bodies.clone()).timings(Timings::FAST).start().await.unwrap();
    for run_id in ids {
        let blocked = until(&db, run_id, |info| info.state == RunState::Blocked).await;
        let message = blocked.error.unwrap().message;
        assert!(message.contains("no end for you") && message.contains("trigger"), "{message}");
    }
    assert_eq!(bodies.0.load(Ordering::SeqCst), 2);
    execute(&db, "delete from public.poison").await;
    for run_id in ids {
        db.run(run_id).resume().await.unwrap();
        until(&db, run_id, |info| info.state == RunState::Completed).await;
    }
    worker.stop().await;
}

#[job(max_attempts = 1)]
async fn triggers_ends_its_transaction_when_told(#[inject] door: &Door, #[inject] tx: &mut Tx) -> Result<()> {
    door.0.acquire().await?.forget();
    sqlx::query("set local lock_timeout = '7s'").execute(&mut **tx).await?;
    Ok(())
}

#[workflow(max_attempts = 1)]
async fn triggers_waits_for_its_child(wf: &Wf, is_transactional: bool) -> Result<()> {
    if is_transactional {
        Ok(wf.start(triggers_ends_its_transaction_when_told()).await?.result().await?)
    } else {
        Ok(wf.start(triggers_ends_when_told()).await?.result().await?)
    }
}

/// A suspended parent. Its child ends once `door` has a permit.
async fn waiting_parent(db: &Db, door: &Door, is_transactional: bool) -> (Worker, RunHandle<()>) {
    let app = App::new(db.clone())
        .with(jobs![
            triggers_waits_for_its_child,
            triggers_ends_when_told,
            triggers_ends_its_transaction_when_told
        ])
        .provide(door.clone());
    let worker = app.timings(Timings::FAST).idle_residency(Duration::ZERO).start().await.unwrap();
    let parent = triggers_waits_for_its_child(is_transactional).enqueue(db).await.unwrap();
    until(db, parent.id(), |info| info.state == RunState::Waiting).await;
    (worker, parent)
}

#[tokio::test(flavor = "multi_thread")]
async fn child_completes_when_trigger_refuses_to_queue_its_parent() {
    let codes = ["P0001", "58030", "25006", "40001"];
    join_all(codes.iter().flat_map(|code| [(code, false), (code, true)]).map(
        async |(code, is_transactional)| {
            let Fixture { db, database: _database } = Fixture::new().await;
            let door = Door(Arc::new(Semaphore::new(0)));
            let (worker, parent) = waiting_parent(&db, &door, is_transactional).await;
            refuse(&db, "ready", code, &[parent.id()]).await;
            door.0.add_permits(1);
            let ended = "select count(*) from runledger.outcome where state = 'completed'";
            eventually(async || scalar::<i64>(&db, ended).await, |n_ended| *n_ended == 1).await;
            execute(&db, "delete from public.poison").await;
            soon(parent.result()).await.unwrap();
            worker.stop().await;
        },
    ))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transactional_child_completes_while_its_waiting_parent_is_locked() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let door = Door(Arc::new(Semaphore::new(0)));
    let (worker, parent) = waiting_parent(&db, &door, true).await;
    let mut operator = db.begin().await.unwrap();
    let lock = "select from runledger.waiting for update";
    sqlx::query(lock).execute(&mut *operator).await.unwrap();
    door.0.add_permits(1);
    let ended = "select count(*) from runledger.outcome where state = 'completed'";
    eventually(async || scalar::<i64>(&db, ended).await, |n_ended| *n_ended == 1).await;
    operator.rollback().await.unwrap();
    soon(parent.result()).await.unwrap();
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn body_keeps_its_lock_timeout_until_commit() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(
        &db,
        "create table public.seen (lock_limit text);
         create function public.see() returns trigger language plpgsql as
         $$ begin insert into public.seen values (current_setting('lock_timeout')); return null; end $$;
         create constraint trigger sees after insert on runledger.outcome
         deferrable initially deferred for each row execute function public.see()",
    )
    .await;
    let door = Door(Arc::new(Semaphore::new(0)));
    let (worker, parent) = waiting_parent(&db, &door, true).await;
    door.0.add_permits(1);
    soon(parent.result()).await.unwrap();
    let of_body = "select count(*) from public.seen where lock_limit = '7s'";
    assert_eq!(scalar::<i64>(&db, of_body).await, 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn release_uses_30s_lock_timeout_and_commit_keeps_body_timeout() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(
        &db,
        "create table public.seen (at text, lock_limit text);
         create function public.see() returns trigger language plpgsql as
         $$ begin insert into public.seen values (tg_table_name, current_setting('lock_timeout')); return null; end $$;
         create constraint trigger sees after insert on runledger.outcome
         deferrable initially deferred for each row execute function public.see()",
    )
    .await;
    let mut graph = Graph::new("g");
    let first = graph.node("first", triggers_ends_its_transaction_when_told());
    let second = graph.node("second", triggers_says("done".into()));
    graph.after(second, first);
    let run = graph.result(second).enqueue(&db).await.unwrap();
    let see =
        "create trigger sees after insert on runledger.ready for each row execute function public.see()";
    execute(&db, see).await;
    let door = Door(Arc::new(Semaphore::new(1)));
    let app = App::new(db.clone()).with(jobs![triggers_ends_its_transaction_when_told, triggers_says]);
    let worker = app.provide(door).timings(Timings::FAST).start().await.unwrap();
    soon(run.result()).await.unwrap();
    let seen =
        "select count(*) from public.seen where (at, lock_limit) in (('ready', '30s'), ('outcome', '7s'))";
    assert_eq!(scalar::<i64>(&db, seen).await, 2);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn child_is_cancelled_when_trigger_refuses_to_queue_its_parent() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let app = App::new(db.clone()).with(jobs![triggers_waits_for_its_child]).timings(Timings::FAST);
    let worker = app.idle_residency(Duration::ZERO).start().await.unwrap();
    let parent = triggers_waits_for_its_child(false).enqueue(&db).await.unwrap();
    until(&db, parent.id(), |info| info.state == RunState::Waiting).await;
    refuse(&db, "ready", "P0001", &[parent.id()]).await;
    let child = scalar(&db, "select run_id from runledger.run where parent_id is not null").await;
    assert_eq!(db.run(child).cancel("enough").await.unwrap(), Cancelled::Now);
    execute(&db, "delete from public.poison").await;
    until(&db, parent.id(), |info| info.state == RunState::Failed).await;
    worker.stop().await;
}

/// With the default timings, only a call that passes all refused runs reaches the others in time.
#[tokio::test(flavor = "multi_thread")]
async fn many_orphans_refused_with_foreign_server_error_delay_no_other() {
    join_all(["25006", "53100"].map(async |code| {
        let Fixture { db, database: _database } = Fixture::new().await;
        let mut runs = Vec::new();
        for _ in 0..30 {
            runs.push(triggers_says("orphan".into()).enqueue(&db).await.unwrap());
        }
        execute(&db, ORPHANS).await;
        let (kept, others) = runs.split_at(20);
        refuse(&db, "ready", code, &ids(kept)).await;
        let worker = App::new(db.clone()).with(jobs![triggers_says]).start().await.unwrap();
        for run in others {
            soon(run.result()).await.unwrap();
        }
        worker.stop().await;
    }))
    .await;
}

/// Returns statements after which the row of this run in `table` cannot be deleted.
fn keeping(table: &str, run_id: Uuid) -> String {
    format!(
        "create table public.keeper (run_id uuid references runledger.{table});
         insert into public.keeper values ('{run_id}')"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn deadline_row_pinned_by_foreign_key_delays_no_other_deadline() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut runs = Vec::new();
    for _ in 0..120 {
        let run = triggers_says("late".into()).delay(LONG * 10).deadline(LONG);
        runs.push(run.enqueue(&db).await.unwrap());
    }
    execute(&db, &keeping("deadline", runs[0].id())).await;
    execute(&db, "update runledger.deadline set deadline_at = now() - interval '1 hour'").await;
    let worker = worker(&db, jobs![triggers_says]).await;
    let left = "select count(*) from runledger.deadline";
    eventually(async || scalar::<i64>(&db, left).await, |n_left| *n_left == 1).await;
    for run in &runs {
        until(&db, run.id(), |info| info.state == RunState::Cancelled).await;
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pause_row_pinned_by_foreign_key_delays_no_other_pause() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![triggers_says]).await;
    let mut ended = Vec::new();
    for _ in 0..210 {
        ended.push(triggers_says("ended".into()).enqueue(&db).await.unwrap());
    }
    for run in &ended {
        soon(run.result()).await.unwrap();
    }
    let run = triggers_says("later".into()).delay(LONG * 10).enqueue(&db).await.unwrap();
    let ask = "insert into runledger.pause (run_id, reason) select run_id, '' from runledger.";
    execute(&db, &format!("{ask}outcome; {}", keeping("pause", ended[0].id()))).await;
    execute(&db, &format!("{ask}ready")).await;
    until(&db, run.id(), |info| info.state == RunState::Paused).await;
    let left = "select count(*) from runledger.pause";
    eventually(async || scalar::<i64>(&db, left).await, |n_left| *n_left == 1).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn suspects_refused_by_trigger_delay_no_other_run() {
    join_all(["58030", "P0001"].map(async |code| {
        let Fixture { db, database: _database } = Fixture::new().await;
        let mut suspects = Vec::new();
        for _ in 0..3 {
            suspects.push(triggers_says("suspect".into()).enqueue(&db).await.unwrap().id());
        }
        execute(&db, "update runledger.ready set crashes = 2").await;
        refuse(&db, "ready", code, &suspects[1..]).await;
        let worker = worker(&db, jobs![triggers_says]).await;
        for _ in 0..10 {
            let other = triggers_says("other".into()).enqueue(&db).await.unwrap();
            assert_eq!(soon(other.result()).await.unwrap(), "other", "{code}");
        }
        execute(&db, "delete from public.poison").await;
        for run_id in suspects {
            until(&db, run_id, |info| info.state == RunState::Completed).await;
        }
        worker.stop().await;
    }))
    .await;
}
