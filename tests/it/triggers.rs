//! What an operator does to the engine's tables concerns the runs that it does it to: triggers that fail with the error of
//! another server, and locked rows.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use runledger::prelude::*;
use runledger::{Handle, Job, RunState, Timings};
use runledger_tests::rows::{execute, scalar, soon, until, worker};
use runledger_tests::{Fixture, eventually};
use tokio::sync::Semaphore;

use crate::limits::Heard;

/// Codes that a foreign table can pass on, and that the server itself gives for its own locks, limits and end.
const CODES: [&str; 6] = ["55P03", "57014", "25P03", "08006", "57P01", "58030"];

#[job]
async fn triggers_says(word: String) -> Result<String> {
    Ok(word)
}

/// Leaves all runs that are ready to a worker that does not exist.
const ORPHANS: &str = "with taken as (delete from runledger.ready returning run_id)
    insert into runledger.lease (run_id, token, worker_id, attempt, crashes, claims, claimed_at)
    select run_id, gen_random_uuid(), 1, 1, 0, 1, now() from taken";

/// Refuses the rows of these runs in `table` with this code, for as long as they are in `poison`.
async fn refuse<J: Job>(db: &Db, table: &str, code: &str, runs: &[Handle<J>]) {
    poison(db, table, &format!("raise exception 'elsewhere' using errcode = '{code}'"), runs).await;
}

/// Does something for the rows of these runs in `table`, for as long as they are in `poison`.
async fn poison<J: Job>(db: &Db, table: &str, statement: &str, runs: &[Handle<J>]) {
    let runs: Vec<String> = runs.iter().map(|run| format!("('{}')", run.id())).collect();
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
async fn end_that_a_trigger_refuses_waits_alone_whatever_the_code() {
    join_all(CODES.map(async |code| {
        let Fixture { db, database: _database } = Fixture::new().await;
        let poison = triggers_says("poison".into()).enqueue(&db).await.unwrap();
        refuse(&db, "outcome", code, std::slice::from_ref(&poison)).await;
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
async fn orphans_that_a_trigger_refuses_to_queue_hold_no_other() {
    join_all(CODES.map(async |code| {
        let Fixture { db, database: _database } = Fixture::new().await;
        let mut runs = Vec::new();
        for _ in 0..6 {
            runs.push(triggers_says("back".into()).enqueue(&db).await.unwrap());
        }
        execute(&db, ORPHANS).await;
        // Two in a row: nobody may take that for a locked table.
        refuse(&db, "ready", code, &runs[1..3]).await;
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

const END_THE_SESSION: &str = "perform pg_terminate_backend(pg_backend_pid())";

#[tokio::test(flavor = "multi_thread")]
async fn end_whose_trigger_ends_the_session_waits_alone() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let killer = triggers_says("killer".into()).enqueue(&db).await.unwrap();
    poison(&db, "outcome", END_THE_SESSION, std::slice::from_ref(&killer)).await;
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
async fn orphan_whose_trigger_ends_the_session_holds_no_other_and_is_named() {
    let heard = Heard::default();
    let _hearing = heard.listen();
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.push(triggers_says("back".into()).enqueue(&db).await.unwrap());
    }
    execute(&db, ORPHANS).await;
    poison(&db, "ready", END_THE_SESSION, &runs[1..2]).await;
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
async fn runs_end_while_the_leases_of_others_are_locked() {
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
async fn worker_that_stops_after_a_table_was_locked_hands_no_ended_run_back() {
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
