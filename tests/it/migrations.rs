//! Migrations (behaviour 49): applied twice, concurrently, without privileges, killed midway, and
//! beside newer programs and the application's own migrations.

use runledger::__private::{MIGRATIONS, MigrateError, Migration, migrate, migrate_as};
use runledger::Db;
use runledger_tests::testing_db::TestDb;
use runledger_tests::{Fixture, eventually};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};

/// The sessions of this database that wait for a lock.
const WAITING: &str =
    "select pid from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()";

async fn empty() -> TestDb {
    TestDb::new("an empty database", async |_: &str| Ok::<(), sqlx::Error>(())).await
}

async fn execute(connection: &mut PgConnection, sql: &str) {
    let sql = AssertSqlSafe(sql.to_owned());
    sqlx::raw_sql(sql).execute(connection).await.unwrap();
}

async fn number(connection: &mut PgConnection, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
}

async fn n_applied(connection: &mut PgConnection) -> usize {
    usize::try_from(number(connection, "select count(*) from runledger.migration").await).unwrap()
}

#[tokio::test]
async fn second_migration_changes_nothing() {
    let database = empty().await;
    let mut connection = database.connect().await.unwrap();
    migrate(&mut connection).await.unwrap();
    let newest = "select max(xmin::text::bigint) from pg_class";
    let before = number(&mut connection, newest).await;
    migrate(&mut connection).await.unwrap();
    assert_eq!(number(&mut connection, newest).await, before);
    assert_eq!(n_applied(&mut connection).await, MIGRATIONS.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_migrators_all_succeed_and_apply_each_migration_once() {
    let database = empty().await;
    let mut migrators = tokio::task::JoinSet::new();
    let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(8));
    for _ in 0..8 {
        let mut connection = database.connect().await.unwrap();
        let barrier = barrier.clone();
        migrators.spawn(async move {
            barrier.wait().await;
            migrate(&mut connection).await
        });
    }
    while let Some(migrated) = migrators.join_next().await {
        migrated.unwrap().unwrap();
    }
    let mut connection = database.connect().await.unwrap();
    assert_eq!(n_applied(&mut connection).await, MIGRATIONS.len());
}

#[tokio::test]
async fn non_superuser_owner_migrates_and_another_role_is_refused() {
    let database = empty().await;
    let mut admin = database.connect().await.unwrap();
    let name: String = sqlx::query_scalar("select current_database()").fetch_one(&mut admin).await.unwrap();
    let (owner, other) = (format!("{name}_owner"), format!("{name}_other"));
    for role in [&owner, &other] {
        execute(&mut admin, &format!("create role {role} login nosuperuser nocreatedb nocreaterole")).await;
    }
    execute(&mut admin, &format!("alter database {name} owner to {owner}")).await;

    let as_role = async |role: &str| {
        let options: PgConnectOptions = database.url().parse().unwrap();
        options.username(role).connect().await.unwrap()
    };
    let refused = migrate(&mut as_role(&other).await).await.unwrap_err();
    assert!(matches!(refused, MigrateError::Database(_)), "{refused}");

    let mut connection = as_role(&owner).await;
    migrate(&mut connection).await.unwrap();
    migrate(&mut connection).await.unwrap();
    assert_eq!(n_applied(&mut connection).await, MIGRATIONS.len());
    connection.close().await.unwrap();
    drop_roles(&mut admin, &name, &[&owner, &other]).await;
}

/// Roles belong to the server and would outlive the database.
async fn drop_roles(admin: &mut PgConnection, name: &str, roles: &[&String]) {
    execute(admin, &format!("alter database {name} owner to current_user")).await;
    for role in roles {
        execute(admin, &format!("drop owned by {role} cascade; drop role {role}")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn migrator_killed_inside_migration_leaves_nothing_and_next_one_succeeds() {
    let database = empty().await;
    let mut blocker = database.connect().await.unwrap();
    // The migration creates a table of this name too. It therefore waits, midway, for the end of
    // this transaction.
    execute(&mut blocker, "create schema runledger").await;
    execute(&mut blocker, "begin; create table runledger.lease (x integer)").await;
    let mut victim = database.connect().await.unwrap();
    let migrating = tokio::spawn(async move { migrate(&mut victim).await });

    let mut watcher = database.connect().await.unwrap();
    let watching = database.pool(1).await.unwrap();
    let waiting = async || sqlx::query_scalar::<_, i32>(WAITING).fetch_all(&watching).await.unwrap();
    let pids = eventually(waiting, |pids| !pids.is_empty()).await;
    sqlx::query("select pg_terminate_backend($1)").bind(pids[0]).execute(&mut watcher).await.unwrap();
    assert!(migrating.await.unwrap().is_err());
    execute(&mut blocker, "rollback").await;

    let tables = "select count(*) from pg_class where relnamespace = 'runledger'::regnamespace";
    assert_eq!(number(&mut watcher, tables).await, 0, "half a migration is there");
    migrate(&mut watcher).await.unwrap();
    assert_eq!(n_applied(&mut watcher).await, MIGRATIONS.len());
}

#[tokio::test]
async fn migration_touches_nothing_outside_runledger_schema() {
    let database = empty().await;
    let mut connection = database.connect().await.unwrap();
    let outside = "select count(*) from pg_depend join pg_class on pg_class.oid = objid and classid = 'pg_class'::regclass
        where relnamespace not in (select oid from pg_namespace where nspname in ('runledger', 'pg_toast'))";
    let extensions = "select count(*) from pg_extension";
    let namespaces = "select count(*) from pg_namespace where nspname !~ '^pg_'";
    let mut before = Vec::new();
    for query in [outside, extensions, namespaces] {
        before.push(number(&mut connection, query).await);
    }
    migrate(&mut connection).await.unwrap();
    assert_eq!(number(&mut connection, outside).await, before[0]);
    assert_eq!(number(&mut connection, extensions).await, before[1]);
    assert_eq!(number(&mut connection, namespaces).await, before[2] + 1);
}

#[tokio::test]
async fn migration_leaves_application_sqlx_migrations_untouched() {
    let database = empty().await;
    let mut connection = database.connect().await.unwrap();
    execute(
        &mut connection,
        "create table _sqlx_migrations (version bigint primary key, description text not null, installed_on timestamptz not null default now(),
             success boolean not null, checksum bytea not null, execution_time bigint not null);
         insert into _sqlx_migrations values (1, 'engine', '2020-01-01', true, '\\x00', 1)",
    )
    .await;
    let theirs = "select count(*) from _sqlx_migrations where version = 1 and checksum = '\\x00' and success";
    migrate(&mut connection).await.unwrap();
    assert_eq!(number(&mut connection, theirs).await, 1);
    assert_eq!(number(&mut connection, "select count(*) from _sqlx_migrations").await, 1);
    assert_eq!(n_applied(&mut connection).await, MIGRATIONS.len());
}

#[tokio::test]
async fn newer_schema_is_refused_only_if_breaking() {
    let Fixture { db: _db, database } = Fixture::new().await;
    let mut connection = database.connect().await.unwrap();
    let newer = "insert into runledger.migration (version, name, checksum, breaking) values (998, 'harmless', 1, false)";
    execute(&mut connection, newer).await;
    Db::connect(database.url()).await.unwrap();

    let breaking = "insert into runledger.migration (version, name, checksum, breaking) values (999, 'new_lanes', 1, true)";
    execute(&mut connection, breaking).await;
    let refused = migrate(&mut connection).await.unwrap_err();
    assert!(matches!(refused, MigrateError::Newer { version: 999, .. }), "{refused}");
    let said = refused.to_string();
    for words in ["version 999 (`new_lanes`)", "nothing was changed", "deploy the newer program"] {
        assert!(said.contains(words), "`{words}` is missing: {said}");
    }
    assert!(Db::connect(database.url()).await.is_err());
    assert_eq!(n_applied(&mut connection).await, MIGRATIONS.len() + 2);
}

#[tokio::test]
async fn older_program_is_refused_only_after_breaking_migration() {
    let Fixture { db: _db, database } = Fixture::new().await;
    let mut connection = database.connect().await.unwrap();
    let mut released = MIGRATIONS.to_vec();
    for (breaking, version) in [false, true, false].into_iter().zip(MIGRATIONS.len() + 1..) {
        let version = i32::try_from(version).unwrap();
        released.push(Migration { version, name: "later", sql: "select 1", breaking });
    }
    migrate_as(&mut connection, &released).await.unwrap();
    for n_known in MIGRATIONS.len()..=released.len() {
        let (known, since) = released.split_at(n_known);
        let migrated = migrate_as(&mut connection, known).await;
        match since.iter().find(|migration| migration.breaking) {
            Some(breaking) => assert!(
                matches!(&migrated, Err(MigrateError::Newer { version, .. }) if *version == breaking.version),
                "with {n_known}: {migrated:?}"
            ),
            None => migrated.unwrap(),
        }
    }
    assert_eq!(n_applied(&mut connection).await, released.len(), "none of them changes anything");
}

#[tokio::test]
async fn migration_with_changed_text_is_refused() {
    let Fixture { db: _db, database } = Fixture::new().await;
    let mut connection = database.connect().await.unwrap();
    execute(&mut connection, "update runledger.migration set checksum = checksum + 1 where version = 1")
        .await;
    let refused = migrate(&mut connection).await.unwrap_err();
    assert!(matches!(refused, MigrateError::Changed { version: 1 }), "{refused}");
}

#[tokio::test]
async fn failed_migration_leaves_no_lock() {
    let database = empty().await;
    let mut connection = database.connect().await.unwrap();
    // Another program's table with one of our names prevents the migration.
    execute(&mut connection, "create schema runledger; create table runledger.lease (x integer)").await;
    let failed = migrate(&mut connection).await.unwrap_err();
    assert!(matches!(failed, MigrateError::Database(_)), "{failed}");
    assert_eq!(
        number(
            &mut connection,
            "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
        )
        .await,
        0
    );
    execute(&mut connection, "drop table runledger.lease").await;
    let mut other = database.connect().await.unwrap();
    migrate(&mut other).await.unwrap();
}

#[tokio::test]
async fn migration_refusal_names_session_holding_lock() {
    let database = empty().await;
    let mut holder = database.connect().await.unwrap();
    let mut connection = database.connect().await.unwrap();
    execute(&mut holder, "begin").await;
    number(&mut holder, "select 1::bigint from pg_advisory_xact_lock(32217264470451303)").await;

    let refused = migrate(&mut connection).await.unwrap_err();
    assert!(matches!(refused, MigrateError::Locked { .. }), "{refused}");
    let pid = number(&mut holder, "select pg_backend_pid()::bigint").await;
    let role: String = sqlx::query_scalar("select current_user::text").fetch_one(&mut holder).await.unwrap();
    let named = format!("session {pid} of role `{role}` held the lock");
    assert!(refused.to_string().starts_with(&named), "{refused}");

    execute(&mut holder, "rollback").await;
    migrate(&mut connection).await.unwrap();
}

/// After an upgrade of the system's locales, an index in another order misses rows that exist.
#[tokio::test]
async fn every_text_index_uses_c_collation() {
    let database = empty().await;
    let mut connection = database.connect().await.unwrap();
    migrate(&mut connection).await.unwrap();
    let others = "select count(*) from pg_index
        join pg_class on pg_class.oid = indexrelid
        cross join unnest(indcollation) as by (collation_id)
        where relnamespace = 'runledger'::regnamespace and collation_id not in (0, 'pg_catalog.\"C\"'::regcollation)";
    assert_eq!(number(&mut connection, others).await, 0);
}
