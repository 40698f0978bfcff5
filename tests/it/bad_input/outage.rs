//! A database that is down, and comes back.

use std::path::PathBuf;

use runledger::dev::{Options, Server, reset, stop_now};
use runledger::prelude::*;
use runledger::{ClientError, Timings};
use runledger_tests::check::place::Deleted;
use runledger_tests::check::{Place, jobs};
use runledger_tests::eventually;

use super::told;

#[job(name = "bad_input.later")]
async fn later(n: u32) -> Result<u32> {
    Ok(n)
}

/// As many connections as a pool has: each of them is dead after a restart.
const CONNECTIONS: u32 = 20;

#[tokio::test]
async fn a_database_that_is_down_is_named_as_the_reason() {
    let error = Db::connect("postgres://nobody@127.0.0.1:1/nowhere?sslmode=disable").await.unwrap_err();
    assert!(matches!(error, ClientError::Connect(_)), "{error:?}");
    assert!(told(&error).contains("refused"), "{}", told(&error));
}

/// A server of this test's own, which it may stop.
fn own_server() -> Options {
    let base: PathBuf = std::env::temp_dir().join(format!("runledger-outage-{}", std::process::id()));
    let mut options = Options::test();
    options.base_dir = Some(base);
    options
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_goes_on_where_it_was_when_its_database_comes_back() {
    let options = own_server();
    let server = Server::start(options.clone()).await.unwrap();
    let url = server.url("postgres");
    let db = Db::connect_with(url.parse().unwrap(), CONNECTIONS).await.unwrap();
    let mut serving = jobs::all();
    serving.extend(jobs![later]);
    let worker = App::new(Db::connect(&url).await.unwrap())
        .with(serving)
        .provide(db.clone())
        .timings(Timings::FAST)
        .start()
        .await
        .unwrap();
    let place = Place::new().unwrap();
    let _folder = Deleted(place.clone());
    let open = jobs::check_gated(place.clone()).enqueue(&db).await.unwrap();
    eventually(|| async { place.events().unwrap_or_default().len() }, |n| *n == 1).await;
    let waiting = open.clone();
    let waiter = tokio::spawn(async move { waiting.result().await });
    let acknowledged = later(1).delay(std::time::Duration::from_secs(2)).enqueue(&db).await.unwrap();
    drop(all_connections(&db).await);
    eventually(|| async { db.pool().num_idle() }, |n| *n == CONNECTIONS as usize).await;

    stop(&options).await.unwrap();
    let error = later(2).enqueue(&db).await.unwrap_err();
    assert!(matches!(error, ClientError::Connect(_)), "{error:?}");
    assert!(
        told(&error).starts_with("cannot connect to the database; nothing was written"),
        "{}",
        told(&error)
    );
    // The body ends while nobody can write it down.
    place.open("all").unwrap();

    let _again = Server::start(options.clone()).await.unwrap();
    assert_eq!(later(3).enqueue(&db).await.unwrap().result().await.unwrap(), 3);
    waiter.await.unwrap().unwrap();
    assert_eq!(acknowledged.result().await.unwrap(), 1);
    assert_eq!(place.events().unwrap().len(), 2, "the body ran once");
    let workers = db.workers().await.unwrap();
    assert_eq!(workers.iter().map(|worker| worker.worker_id).collect::<Vec<_>>(), [worker.id()]);
    worker.stop().await;
    tokio::task::spawn_blocking(move || reset(&options)).await.unwrap().unwrap();
}

/// Makes the pool open all its connections.
async fn all_connections(db: &Db) -> Vec<sqlx::pool::PoolConnection<sqlx::Postgres>> {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.extend(db.pool().acquire().await);
    }
    connections
}

async fn stop(options: &Options) -> anyhow::Result<()> {
    let options = options.clone();
    Ok(tokio::task::spawn_blocking(move || stop_now(&options)).await??)
}

#[tokio::test]
async fn a_pool_whose_connections_are_all_in_use_is_named_as_the_reason() {
    let fixture = runledger_tests::Fixture::new().await;
    let db = Db::connect_with(fixture.database.url().parse().unwrap(), 1).await.unwrap();
    let held = db.pool().acquire().await.unwrap();
    let error = later(1).enqueue(&db).await.unwrap_err();
    assert!(matches!(error, ClientError::PoolExhausted { connections: 1 }), "{error:?}");
    drop(held);
    later(1).enqueue(&db).await.unwrap();
}
