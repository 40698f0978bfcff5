//! Servers and roles that the engine refuses.

use runledger::prelude::*;
use runledger::{ClientError, Timings};
use runledger_tests::Fixture;
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgConnectOptions;

use super::told;

#[job(name = "bad_input.served")]
async fn served() -> Result<()> {
    Ok(())
}

/// Makes later sessions of the fixture's database behave differently, and tries to connect.
async fn refused(setup: &'static str) -> anyhow::Result<ClientError> {
    let fixture = Fixture::new().await;
    let mut connection = fixture.database.connect().await?;
    sqlx::raw_sql(setup).execute(&mut connection).await?;
    let connected = Db::connect(fixture.database.url()).await;
    connected.err().ok_or_else(|| anyhow::anyhow!("it was not refused"))
}

#[tokio::test]
async fn read_only_database_is_refused_as_not_writable() {
    let set = "do $$ begin execute format('alter database %I set default_transaction_read_only = on', current_database()); end $$";
    let error = refused(set).await.unwrap();
    assert!(matches!(error, ClientError::NotWritable { .. }), "{error:?}");
    assert!(
        told(&error).contains("is read-only and cannot be written to; connect to the primary server"),
        "{error}"
    );
}

#[tokio::test]
async fn database_with_non_utf8_encoding_is_refused_before_any_write() {
    let fixture = Fixture::new().await;
    let options: PgConnectOptions = fixture.database.url().parse().unwrap();
    for encoding in ["SQL_ASCII", "LATIN1"] {
        let name = format!("encoded_{}", uuid::Uuid::now_v7().simple());
        let make = format!(
            "create database {name} template template0 encoding '{encoding}' lc_collate 'C' lc_ctype 'C'"
        );
        sqlx::raw_sql(AssertSqlSafe(make)).execute(fixture.db.pool()).await.unwrap();
        let error = Db::connect_with(options.clone().database(&name), 1).await.unwrap_err();
        let said = format!(
            "database `{name}` has the encoding `{encoding}`, and Runledger needs `UTF8`; nothing was written"
        );
        assert!(told(&error).starts_with(&said), "{error}");
        let drop = format!("drop database {name} with (force)");
        sqlx::raw_sql(AssertSqlSafe(drop)).execute(fixture.db.pool()).await.unwrap();
    }
}

/// Options of a session with this search path, as a role's settings would set it.
fn with_path(url: &str, path: &str) -> PgConnectOptions {
    let options: PgConnectOptions = url.parse().unwrap();
    options.options([("search_path", path)])
}

#[tokio::test]
async fn search_path_starting_in_runledger_schema_is_refused_before_write() {
    let fixture = Fixture::new().await;
    let url = fixture.database.url();
    sqlx::raw_sql("drop schema runledger cascade").execute(fixture.db.pool()).await.unwrap();
    // The role of the embedded server is called `runledger`, so PostgreSQL's default is such a
    // path.
    let role: String =
        sqlx::query_scalar("select current_user::text").fetch_one(fixture.db.pool()).await.unwrap();
    let mut paths = vec!["runledger,public", "nowhere,runledger,public", "RunLedger,public", "\"runledger\""];
    if role == "runledger" {
        paths.push("\"$user\",public");
    }
    for path in paths {
        let error = Db::connect_with(with_path(url, path), 2).await.unwrap_err();
        assert!(matches!(&error, ClientError::SearchPath { .. }), "{path}: {error:?}");
        assert!(told(&error).contains(&format!("alter role {role} set search_path = public")), "{error}");
        let address = url.split('?').next().unwrap();
        assert!(told(&error).contains(&format!("role `{role}` at `{address}")), "{address}: {error}");
    }
    let n_schemas: i64 = sqlx::query_scalar("select count(*) from pg_namespace where nspname = 'runledger'")
        .fetch_one(fixture.db.pool())
        .await
        .unwrap();
    assert_eq!(n_schemas, 0);
    // Nothing is created in a schema that is last in the path.
    for path in ["public,runledger", "\"RunLedger\",public"] {
        Db::connect_with(with_path(url, path), 2).await.unwrap();
    }
}

#[tokio::test]
async fn search_path_error_quotes_role_name_and_hides_password() {
    let fixture = Fixture::new().await;
    let role = format!("Needs \"quotes\" {}", uuid::Uuid::now_v7());
    let quoted = format!("\"{}\"", role.replace('"', "\"\""));
    let make = format!("create role {quoted} login superuser password 'hunter2'");
    sqlx::raw_sql(AssertSqlSafe(make)).execute(fixture.db.pool()).await.unwrap();
    let options = with_path(fixture.database.url(), "runledger").username(&role).password("hunter2");
    let error = Db::connect_with(options, 2).await.unwrap_err();
    sqlx::raw_sql(AssertSqlSafe(format!("drop role {quoted}"))).execute(fixture.db.pool()).await.unwrap();
    assert!(told(&error).contains(&format!("`alter role {quoted} set search_path = public`")), "{error}");
    assert!(!told(&error).contains("hunter2"), "{error}");
}

#[tokio::test]
async fn worker_with_too_small_pool_does_not_start() {
    let fixture = Fixture::new().await;
    let db = Db::connect_with(fixture.database.url().parse().unwrap(), 2).await.unwrap();
    let error = App::new(db).with(jobs![served]).timings(Timings::FAST).start().await.unwrap_err();
    let said = "a worker's pool needs at least 3 connections, this one has 2";
    assert!(told(&error).starts_with(said), "{error}");
    assert!(fixture.db.workers().await.unwrap().is_empty());
}
