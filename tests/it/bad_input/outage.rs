//! A database that stops and restarts.

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

/// The connections of the pool. All of them are dead after a restart.
const CONNECTIONS: u32 = 20;

/// Tries to connect and returns the error text, which never contains the password.
async fn refused(url: &str) -> String {
    let error = Db::connect(url).await.unwrap_err();
    assert!(matches!(error, ClientError::Connect { .. }), "{error:?}");
    assert!(!format!("{error:?} {}", told(&error)).contains("hunter2"), "{error:?}");
    told(&error)
}

#[tokio::test]
async fn connection_error_names_unreachable_database_without_password() {
    let said = refused("postgres://nobody:hunter2@127.0.0.1:1/nowhere?sslmode=disable").await;
    assert!(
        said.starts_with("cannot connect to database `nowhere` as role `nobody` at `127.0.0.1:1`;"),
        "{said}"
    );
    assert!(said.contains("nothing was written; check that this is the right address"), "{said}");
    assert!(said.contains("refused"), "{said}");
}

#[tokio::test]
async fn missing_socket_error_names_its_directory() {
    let place = "through the socket of port 5433 in `/nowhere/at/all`;";
    for address in ["localhost:5433/nowhere?host=/nowhere/at/all", "%2Fnowhere%2Fat%2Fall:5433/nowhere"] {
        let said = refused(&format!("postgres://nobody:hunter2@{address}")).await;
        assert!(said.contains(place), "{address}: {said}");
    }
}

#[tokio::test]
async fn missing_database_is_named_in_error() {
    let fixture = runledger_tests::Fixture::new().await;
    let options: sqlx::postgres::PgConnectOptions = fixture.database.url().parse().unwrap();
    let error = Db::connect_with(options.database("not_there"), 1).await.unwrap_err();
    assert!(matches!(error, ClientError::Connect { .. }), "{error:?}");
    assert!(told(&error).starts_with("cannot connect to database `not_there` as role `"), "{error}");
}

#[tokio::test]
async fn malformed_address_error_explains_format_without_password() {
    for password in
        ["hun/ter2", "12/34", "12?34", "12#34", "1@2/34", "12/34==", "12#34==", "12?a=34", "12?a=b&34"]
    {
        let error =
            Db::connect(&format!("postgres://nobody:{password}@db.example/nowhere")).await.unwrap_err();
        assert!(matches!(error, ClientError::Address(_)), "{password}: {error:?}");
        let said = told(&error);
        assert!(said.contains("of the form `postgres://role:password@host:5432/database`"), "{said}");
        for part in ["ter2", "34"] {
            assert!(!said.contains(part), "{password}: {said}");
        }
    }
}

/// Options of a server that this test may stop.
fn own_server() -> Options {
    let base: PathBuf = std::env::temp_dir().join(format!("runledger-outage-{}", std::process::id()));
    let mut options = Options::test();
    options.base_dir = Some(base);
    options
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_and_its_runs_continue_after_database_restart() {
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
    assert!(matches!(error, ClientError::Connect { .. }), "{error:?}");
    assert!(told(&error).starts_with("cannot connect to database `postgres` as role"), "{}", told(&error));
    let unstarted = App::new(db.clone()).with(jobs![later]).start().await.unwrap_err();
    assert!(matches!(unstarted, ClientError::Connect { .. }), "{unstarted:?}");
    // The body ends while the database is down.
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
async fn exhausted_pool_is_named_in_error() {
    let fixture = runledger_tests::Fixture::new().await;
    let db = Db::connect_with(fixture.database.url().parse().unwrap(), 1).await.unwrap();
    let held = db.pool().acquire().await.unwrap();
    let error = later(1).enqueue(&db).await.unwrap_err();
    assert!(matches!(error, ClientError::PoolExhausted { connections: 1 }), "{error:?}");
    drop(held);
    later(1).enqueue(&db).await.unwrap();
}

#[tokio::test]
async fn server_connection_limit_is_named_in_error() {
    let fixture = runledger_tests::Fixture::new().await;
    let role = format!("limited_{}", uuid::Uuid::now_v7().simple());
    let options: sqlx::postgres::PgConnectOptions = fixture.database.url().parse().unwrap();
    let sql = |text: &str| sqlx::AssertSqlSafe(text.replace("ROLE", &role));
    let make = "create role ROLE login password 'x'; grant usage on schema runledger to ROLE;
        grant select on all tables in schema runledger to ROLE";
    sqlx::raw_sql(sql(make)).execute(fixture.db.pool()).await.unwrap();
    let db = Db::connect_with(options.username(&role).password("x"), 3).await.unwrap();
    let held = [db.pool().acquire().await.unwrap(), db.pool().acquire().await.unwrap()];
    // Only now, because a closed connection counts until its server process is gone.
    sqlx::raw_sql(sql("alter role ROLE connection limit 2")).execute(fixture.db.pool()).await.unwrap();
    let error = later(1).enqueue(&db).await.unwrap_err();
    let said = told(&error);
    assert!(said.contains("the server accepts no further connection"), "{said}");
    assert!(said.contains("too many connections for role"), "{said}");
    drop(held);
    db.pool().close().await;
    sqlx::raw_sql(sql("drop owned by ROLE; drop role ROLE")).execute(fixture.db.pool()).await.unwrap();
}

#[tokio::test]
async fn non_postgres_address_is_refused_without_showing_password() {
    for address in [
        "mysql://annabel:hunter2@db/app",
        "jdbc:postgresql://annabel:hunter2@db/app",
        "http://annabel:hunter2@db",
        "hunter2://db",
        "postgre://annabel:hunter2@db/app",
        "sqlite:app.db",
        "sqlite::memory:",
        "mysql:app",
    ] {
        let error = Db::connect(address).await.unwrap_err();
        assert!(matches!(error, ClientError::Address(_)), "{address}: {error:?}");
        let text = told(&error);
        for words in ["`postgres://role:password@host:5432/database`", "`postgres://` or `postgresql://`"] {
            assert!(text.contains(words), "`{words}` is missing: {text}");
        }
        for part in ["annabel", "hunter2"] {
            assert!(!text.contains(part), "{text}");
        }
    }
    // The scheme of a URL is not case-sensitive.
    let unreachable = Db::connect("PostgreSQL://nobody@127.0.0.1:1/app").await.unwrap_err();
    assert!(matches!(unreachable, ClientError::Connect { .. }), "{unreachable:?}");
}
