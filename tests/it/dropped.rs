//! Behaviour 25 for undos that cannot be made.

use std::sync::atomic::{AtomicU32, Ordering};

use runledger::prelude::*;
use runledger::{ClientError, FailureKind, Timings, Worker};
use runledger_tests::Fixture;
use uuid::Uuid;

use crate::rows::{execute, soon};

const TABLES: &str = "create table deed (n serial, run_id uuid, what text)";
const WRITE: &str = "insert into deed (run_id, what) values ($1, $2)";

/// Does it in the transaction of its record.
#[job(max_attempts = 1)]
async fn books(what: String, #[inject] tx: &mut Tx, #[inject] context: &Context) -> Result<String> {
    sqlx::query(WRITE).bind(context.run_id()).bind(&what).execute(&mut **tx).await?;
    Ok(what)
}

#[job]
async fn undoes(what: String, #[inject] tx: &mut Tx, #[inject] context: &Context) -> Result<()> {
    sqlx::query(WRITE).bind(context.run_id()).bind(format!("not {what}")).execute(&mut **tx).await?;
    Ok(())
}

async fn deeds(db: &Db) -> Vec<String> {
    sqlx::query_scalar("select what from deed order by n").fetch_all(db.pool()).await.unwrap()
}

async fn worker<const N: usize>(db: &Db, jobs: [&'static runledger::Definition; N]) -> Worker {
    App::new(db.clone()).with(jobs).provide(db.clone()).timings(Timings::FAST).start().await.unwrap()
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

/// What takes a step back cannot be said.
#[workflow(max_attempts = 3, backoff = "1ms..1ms")]
async fn cannot_say_how(wf: &Wf, is_transactional: bool) -> Result<()> {
    let saga = wf.saga();
    let call = |n: &u32| {
        assert!(*n > 99, "how is {n} undone?");
        undoes(n.to_string())
    };
    saga.run(books("before".into()), |what| undoes(what.clone())).await?;
    if is_transactional {
        saga.run(counts_and_books(), call).await?
    } else {
        saga.run(counts(), call).await?
    };
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_where_an_undo_is_made_fails_its_step_and_does_not_run_the_body_again() {
    for (is_transactional, words) in [(false, "see to it by hand"), (true, "was rolled back")] {
        let Fixture { db, database: _database } = Fixture::new().await;
        execute(&db, TABLES).await;
        let worker = worker(&db, jobs![cannot_say_how, counts, counts_and_books, books, undoes]).await;
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
