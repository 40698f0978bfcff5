//! PgBouncer between the engine and the database.

use runledger::prelude::*;
use runledger::{ClientError, Timings};
use runledger_tests::pooler::{Bouncer, Mode};
use runledger_tests::{Fixture, PATIENCE};

use super::told;

#[job(name = "bad_input.behind")]
async fn behind(n: u32) -> Result<u32> {
    Ok(n)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PgBouncer (Debian: `pgbouncer`): `cargo exhaustive`"]
async fn worker_behind_transaction_mode_pgbouncer_refuses_to_start_with_reason() {
    let fixture = Fixture::new().await;
    let bouncer = Bouncer::start(fixture.database.url(), Mode::Transaction, 20).await.unwrap();
    let db = Db::connect(bouncer.url()).await.unwrap();
    let error = App::new(db).with(jobs![behind]).timings(Timings::FAST).start().await.unwrap_err();
    assert!(matches!(error, ClientError::Config(_)), "{error:?}");
    let said = told(&error);
    assert!(said.contains("PgBouncer in transaction or statement mode"), "{said}");
    assert!(said.contains("connect to PostgreSQL directly, or through a pooler in session mode"), "{said}");
    assert!(fixture.db.workers().await.unwrap().is_empty(), "it registered all the same");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PgBouncer (Debian: `pgbouncer`): `cargo exhaustive`"]
async fn prepared_statement_clash_behind_pgbouncer_error_advises_session_mode() {
    let fixture = Fixture::new().await;
    let bouncer = Bouncer::start(fixture.database.url(), Mode::Transaction, 1).await.unwrap();
    let first = Db::connect(bouncer.url()).await;
    // The one session still has the prepared statements of `first`.
    let second = Db::connect(bouncer.url()).await.unwrap_err();
    assert!(told(&second).contains("session mode"), "{}", told(&second));
    drop(first);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PgBouncer (Debian: `pgbouncer`): `cargo exhaustive`"]
async fn worker_behind_session_mode_pgbouncer_runs() {
    let fixture = Fixture::new().await;
    let bouncer = Bouncer::start(fixture.database.url(), Mode::Session, 20).await.unwrap();
    let db = Db::connect(bouncer.url()).await.unwrap();
    let worker = App::new(db.clone()).with(jobs![behind]).timings(Timings::FAST).start().await.unwrap();
    let run = behind(7).enqueue(&db).await.unwrap();
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), 7);
    worker.stop().await;
}
