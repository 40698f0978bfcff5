//! Copies of a database: no worker serves a copy before an operator has adopted it.

use std::path::PathBuf;

use runledger::prelude::*;
use runledger::testing::Testing;
use runledger::{ClientError, RunState, Timings};
use runledger_tests::Fixture;
use runledger_tests::rows::{execute, scalar, soon, until};
use runledger_tests::testing_db::TestDb;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};
use tokio::process::Command;

#[job]
async fn clones_charge(n: u32) -> Result<u32> {
    Ok(n)
}

async fn start(db: &Db) -> std::result::Result<runledger::Worker, ClientError> {
    App::new(db.clone()).with(jobs![clones_charge]).timings(Timings::FAST).start().await
}

/// Returns the error of a worker that does not start on a copy.
async fn refusal(db: &Db) -> String {
    let refused = start(db).await.map(drop).unwrap_err();
    assert!(matches!(refused, ClientError::Copy { .. }), "{refused:?}");
    refused.to_string()
}

/// Simulates a database created from a template, which contains the template's installation record.
macro_rules! template_copy {
    () => {
        "update runledger.installation set database = 0, written_by = pg_current_xact_id()::text::bigint"
    };
}

async fn empty() -> TestDb {
    TestDb::new("an empty database", async |_: &str| Ok::<(), sqlx::Error>(())).await
}

async fn program(name: &str, arguments: &[&str]) {
    let (folder, _): (PathBuf, _) = runledger::dev::on_this_machine().unwrap();
    let ended = Command::new(folder.join(name)).args(arguments).output().await.unwrap();
    assert!(ended.status.success(), "{name}: {}", String::from_utf8_lossy(&ended.stderr));
}

async fn admin(url: &str) -> PgConnection {
    let options: PgConnectOptions = url.parse().unwrap();
    options.database("postgres").connect().await.unwrap()
}

fn name_of(url: &str) -> String {
    url.parse::<PgConnectOptions>().unwrap().get_database().unwrap().to_owned()
}

/// Checks that workers refuse the copy, that clients can use it, and that workers serve it once it
/// is adopted.
async fn is_refused_until_adopted(original: &str, copy: &str, run: uuid::Uuid) {
    let copied = Db::connect(copy).await.unwrap();
    let told = refusal(&copied).await;
    for words in ["a copy of installation `", "run `runledger adopt`", "no worker serves it"] {
        assert!(told.contains(words), "`{words}` is missing: {told}");
    }
    assert_eq!(copied.run(run).info().await.unwrap().state, RunState::Queued);
    let enqueued = clones_charge(2).enqueue(&copied).await.unwrap();

    let adopted = copied.adopt().await.unwrap();
    assert!(adopted.was_copy);
    let worker = start(&copied).await.unwrap();
    assert_eq!(soon(enqueued.result()).await.unwrap(), 2);
    until(&copied, run, |run| run.state == RunState::Completed).await;
    worker.stop().await;
    let again = copied.adopt().await.unwrap();
    assert_eq!((again.id, again.was_copy), (adopted.id, false));

    let db = Db::connect(original).await.unwrap();
    let id: uuid::Uuid = scalar(&db, "select id from runledger.installation").await;
    assert_ne!(id, adopted.id);
    let worker = start(&db).await.unwrap();
    until(&db, run, |run| run.state == RunState::Completed).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs `pg_dump` and `psql`, which the download has not: `cargo exhaustive`"]
async fn restored_dump_is_refused_until_adopted() {
    let Fixture { db, database } = Fixture::new().await;
    let run = clones_charge(1).enqueue(&db).await.unwrap().id();
    let copy = empty().await;
    let file = std::env::temp_dir().join(format!("runledger-{}.sql", uuid::Uuid::now_v7()));
    let file = file.to_str().unwrap();
    program("pg_dump", &["-d", database.url(), "-f", file]).await;
    program("psql", &["-q", "-v", "ON_ERROR_STOP=1", "-d", copy.url(), "-f", file]).await;
    std::fs::remove_file(file).unwrap();
    is_refused_until_adopted(database.url(), copy.url(), run).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs `pg_dump` and `psql`, which the download has not: `cargo exhaustive`"]
async fn restore_in_parts_is_refused_until_adopted() {
    let Fixture { db, database } = Fixture::new().await;
    let run = clones_charge(1).enqueue(&db).await.unwrap().id();
    let copy = empty().await;
    let file = std::env::temp_dir().join(format!("runledger-{}.sql", uuid::Uuid::now_v7()));
    let file = file.to_str().unwrap();
    // `pg_dump` writes the tables in this order if a client names them, long before the runs.
    let first = ["-a", "-t", "runledger.installation", "-t", "runledger.migration"];
    let then = ["-a", "-n", "runledger", "-T", "runledger.installation", "-T", "runledger.migration"];
    for part in [&["-s"][..], &first, &then] {
        program("pg_dump", &[part, &["-d", database.url(), "-f", file]].concat()).await;
        program("psql", &["-q", "-v", "ON_ERROR_STOP=1", "-d", copy.url(), "-f", file]).await;
        if part != ["-s"] {
            Db::connect(copy.url()).await.unwrap();
        }
    }
    std::fs::remove_file(file).unwrap();
    is_refused_until_adopted(database.url(), copy.url(), run).await;
}

/// An operator restores into a database that a program has already migrated, and ignores the errors
/// of `create`.
#[tokio::test(flavor = "multi_thread")]
async fn migrated_database_with_rows_of_another_is_refused_until_adopted() {
    let (original, copy) = (Fixture::new().await, Fixture::new().await);
    let run = clones_charge(1).enqueue(&original.db).await.unwrap().id();
    for table in ["installation", "run", "ready"] {
        let read = format!("select json_agg(\"row\")::text from runledger.{table} as \"row\"");
        let rows: String = scalar(&original.db, &read).await;
        let write = format!(
            "insert into runledger.{table} select * from json_populate_recordset(null::runledger.{table}, $1::json)"
        );
        sqlx::query(AssertSqlSafe(write)).bind(rows).execute(copy.db.pool()).await.unwrap();
    }
    is_refused_until_adopted(original.database.url(), copy.database.url(), run).await;
    assert_eq!(scalar::<i64>(&copy.db, "select count(*) from runledger.installation").await, 1);
}

/// While `pg_restore` and `psql` load a dump, the tables fill one after another.
#[tokio::test]
async fn client_does_not_adopt_copy_during_restore() {
    let Fixture { db, database } = Fixture::new().await;
    for (restore, undo) in [
        ("update runledger.installation set written_by = written_by", "select"),
        ("update runledger.installation set written_by = null", "select"),
        (concat!(template_copy!(), ", relation = relation - 1"), "select"),
        (concat!(template_copy!(), ", relation = null"), "select"),
        (concat!(template_copy!(), ", system = '7'"), "select"),
        (
            "insert into runledger.installation (id, database) values (gen_random_uuid(), 1)",
            "delete from runledger.installation where database = 1",
        ),
    ] {
        execute(&db, template_copy!()).await;
        execute(&db, restore).await;
        Db::connect(database.url()).await.unwrap();
        let homes = "select min(database) from runledger.installation";
        assert_eq!(scalar::<i64>(&db, homes).await, 0, "after `{restore}`");
        execute(&db, undo).await;
        db.adopt().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_adoptions_agree_on_one_installation() {
    let Fixture { db, database } = Fixture::new().await;
    for _ in 0..10 {
        execute(&db, "update runledger.installation set database = 0").await;
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(Db::connect(database.url()).await.unwrap());
        }
        execute(&db, "update runledger.installation set database = 0").await;
        let adopted = futures::future::join_all(clients.iter().map(Db::adopt)).await;
        let id: uuid::Uuid = scalar(&db, "select id from runledger.installation").await;
        assert!(adopted.iter().all(|adopted| adopted.as_ref().unwrap().id == id), "{adopted:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn database_created_from_template_is_refused_until_adopted() {
    let Fixture { db, database } = Fixture::new().await;
    let run = clones_charge(1).enqueue(&db).await.unwrap().id();
    db.pool().close().await;
    let (name, mut admin) = (name_of(database.url()), admin(database.url()).await);
    let end =
        format!("select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = '{name}'");
    runledger_tests::eventually(
        async || {
            let mut own = self::admin(database.url()).await;
            sqlx::query_scalar::<_, i64>(AssertSqlSafe(end.clone())).fetch_one(&mut own).await.unwrap()
        },
        |n| *n == 0,
    )
    .await;
    let make = format!("create database {name}_copy template {name}");
    sqlx::raw_sql(AssertSqlSafe(make)).execute(&mut admin).await.unwrap();
    let copy = database.url().replace(&name, &format!("{name}_copy"));
    is_refused_until_adopted(database.url(), &copy, run).await;
    admin.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn renamed_database_is_served() {
    let Fixture { db, database } = Fixture::new().await;
    let run = clones_charge(1).enqueue(&db).await.unwrap().id();
    db.pool().close().await;
    let (name, mut admin) = (name_of(database.url()), admin(database.url()).await);
    let rename = format!("alter database {name} rename to {name}_renamed");
    runledger_tests::eventually(
        async || {
            let mut own = self::admin(database.url()).await;
            sqlx::raw_sql(AssertSqlSafe(rename.clone()))
                .execute(&mut own)
                .await
                .map(drop)
                .map_err(|e| e.to_string())
        },
        Result::is_ok,
    )
    .await
    .unwrap();
    let db = Db::connect(&database.url().replace(&name, &format!("{name}_renamed"))).await.unwrap();
    let worker = start(&db).await.unwrap();
    until(&db, run, |run| run.state == RunState::Completed).await;
    worker.stop().await;
    admin.ping().await.unwrap();
}

/// A promoted standby has the system identifier of its primary, and its database has the same oid.
#[tokio::test(flavor = "multi_thread")]
async fn worker_refuses_mismatched_system_identifier_database_oid_or_missing_record() {
    let Fixture { db, database: _database } = Fixture::new().await;
    clones_charge(1)
        .start_at(std::time::SystemTime::now() + runledger_tests::PATIENCE * 100)
        .enqueue(&db)
        .await
        .unwrap();
    start(&db).await.unwrap().stop().await;
    // Simulates a server that hides its system identifier from the migration.
    execute(&db, "update runledger.installation set system = null").await;
    start(&db).await.unwrap().stop().await;

    execute(&db, "update runledger.installation set system = '7'").await;
    let told = refusal(&db).await;
    assert!(told.contains("of system 7;") && told.contains("a copy of installation"), "{told}");
    db.adopt().await.unwrap();
    execute(&db, "update runledger.installation set database = database + 1").await;
    refusal(&db).await;
    execute(&db, "delete from runledger.installation").await;
    assert!(refusal(&db).await.contains("without a record"));
    assert!(db.adopt().await.unwrap().was_copy);
    start(&db).await.unwrap().stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn installation_without_visible_system_identifier_is_identified_by_database() {
    let Fixture { db, database } = Fixture::new().await;
    let (role, mut connection) =
        (format!("{}_blind", name_of(database.url())), database.connect().await.unwrap());
    let blind = format!(
        "revoke execute on function pg_catalog.pg_control_system() from public; create role {role};
         grant usage on schema runledger to {role}; grant select on runledger.installation to {role}; set role {role}"
    );
    sqlx::raw_sql(AssertSqlSafe(blind)).execute(&mut connection).await.unwrap();
    let here: (Option<String>, i64) = sqlx::query_as("select system, database from runledger.here()")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    let oid: i64 =
        scalar(&db, "select oid::bigint from pg_database where datname = current_database()").await;
    assert_eq!(here, (None, oid));
    let (_, statement) =
        runledger::__private::STATEMENTS.iter().find(|(name, _)| *name == "installation").unwrap();
    let row = sqlx::query(*statement).fetch_one(&mut connection).await.unwrap();
    assert!(sqlx::Row::get::<bool, _>(&row, "is_home"));
    let gone = format!("reset role; drop owned by {role}; drop role {role}");
    sqlx::raw_sql(AssertSqlSafe(gone)).execute(&mut connection).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn copy_without_unfinished_runs_is_adopted_by_first_client() {
    let Fixture { db, database } = Fixture::new().await;
    let done = clones_charge(1).enqueue(&db).await.unwrap();
    let worker = start(&db).await.unwrap();
    soon(done.result()).await.unwrap();
    worker.stop().await;
    let before: uuid::Uuid = scalar(&db, "select id from runledger.installation").await;
    execute(&db, template_copy!()).await;
    let copied = Db::connect(database.url()).await.unwrap();
    clones_charge(2).enqueue(&copied).await.unwrap();
    start(&copied).await.unwrap().stop().await;
    assert_ne!(scalar::<uuid::Uuid>(&db, "select id from runledger.installation").await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn any_worker_serves_test_kit_database() {
    let test = Testing::new().await.unwrap();
    let run = clones_charge(1).enqueue(test.db()).await.unwrap();
    let worker = start(test.db()).await.unwrap();
    assert_eq!(soon(run.result()).await.unwrap(), 1);
    worker.stop().await;
}
