//! A user's session settings on a pooled connection must not reach its next user, which may be the
//! engine.

use futures::StreamExt;
use runledger::prelude::*;
use runledger_tests::rows::{scalar, worker};
use runledger_tests::{Fixture, PATIENCE, eventually};
use sqlx::AssertSqlSafe;

/// Changes the session and not only the transaction.
#[job]
async fn session_reset_sets(statement: String, #[inject] tx: &mut Tx) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut **tx).await?;
    Ok(())
}

#[job]
async fn session_reset_reads(#[inject] tx: &mut Tx) -> Result<Vec<String>> {
    Ok(sqlx::query_scalar(SETTINGS).fetch_all(&mut **tx).await?)
}

const SETTINGS: &str = "
    select name || '=' || setting from pg_settings
    where name in ('synchronous_commit', 'default_transaction_read_only', 'search_path', 'statement_timeout', 'jit', 'role', 'session_authorization')
    union all select 'user=' || current_user
    order by 1";

#[tokio::test(flavor = "multi_thread")]
async fn session_settings_of_body_do_not_reach_later_transactions() {
    let Fixture { db: admin, database } = Fixture::new().await;
    // The fewest connections for a worker, so that each connection is reused.
    let db = Db::connect_with(database.url().parse().unwrap(), 3).await.unwrap();
    let worker = worker(&db, jobs![session_reset_sets, session_reset_reads]).await;
    let before = session_reset_reads().enqueue(&admin).await.unwrap().result_within(PATIENCE).await.unwrap();
    for statement in [
        "set synchronous_commit = local".to_owned(),
        "set default_transaction_read_only = on".to_owned(),
        "set search_path = pg_temp".to_owned(),
        "set statement_timeout = '1h'".to_owned(),
        "set jit = on".to_owned(),
    ] {
        for _ in 0..3 {
            let set = session_reset_sets(statement.clone()).enqueue(&admin).await.unwrap();
            set.result_within(PATIENCE).await.unwrap();
        }
        let after =
            session_reset_reads().enqueue(&admin).await.unwrap().result_within(PATIENCE).await.unwrap();
        assert_eq!(after, before, "after `{statement}`");
    }
    worker.stop().await;
}

#[tokio::test]
async fn role_set_on_connection_does_not_reach_its_next_user() {
    let Fixture { db: admin, database } = Fixture::new().await;
    let role = format!("reset_{}", uuid::Uuid::now_v7().simple());
    sqlx::raw_sql(AssertSqlSafe(format!("create role {role}"))).execute(admin.pool()).await.unwrap();
    let db = Db::connect_with(database.url().parse().unwrap(), 1).await.unwrap();
    let before: Vec<String> = sqlx::query_scalar(SETTINGS).fetch_all(db.pool()).await.unwrap();
    for statement in [format!("set role {role}"), format!("set session authorization {role}")] {
        sqlx::raw_sql(AssertSqlSafe(statement.clone())).execute(db.pool()).await.unwrap();
        let after: Vec<String> = sqlx::query_scalar(SETTINGS).fetch_all(db.pool()).await.unwrap();
        assert_eq!(after, before, "after `{statement}`");
    }
    sqlx::raw_sql(AssertSqlSafe(format!("drop role {role}"))).execute(admin.pool()).await.unwrap();
}

/// The state of a session other than its settings.
const KEPT: &str = "
    select 'table ' || oid::regclass from pg_class where relnamespace = pg_my_temp_schema() and relkind = 'r'
    union all select 'channel ' || pg_listening_channels()
    union all select 'cursor ' || name from pg_cursors where is_holdable
    union all select 'lock ' || objid from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()";

#[tokio::test]
async fn session_state_does_not_reach_next_user_of_connection() {
    let Fixture { db: _db, database } = Fixture::new().await;
    let db = Db::connect_with(database.url().parse().unwrap(), 1).await.unwrap();
    for statement in [
        "create temporary table orders (n int)",
        "listen orders",
        "declare orders cursor with hold for select 1",
        "select pg_advisory_lock(7), pg_advisory_lock(7)",
    ] {
        let mut connection = db.pool().acquire().await.unwrap();
        sqlx::raw_sql(statement).execute(&mut *connection).await.unwrap();
        let left: Vec<String> = sqlx::query_scalar(KEPT).fetch_all(&mut *connection).await.unwrap();
        assert_eq!(left.len(), 1, "`{statement}` leaves {left:?}");
        drop(connection);
        let left: Vec<String> = sqlx::query_scalar(KEPT).fetch_all(db.pool()).await.unwrap();
        assert_eq!(left, [""; 0], "after `{statement}`");
    }
}

#[tokio::test]
async fn connection_with_unfinished_copy_is_not_reused() {
    let Fixture { db: admin, database } = Fixture::new().await;
    let db = Db::connect_with(database.url().parse().unwrap(), 1).await.unwrap();
    let pid =
        async || sqlx::query_scalar::<_, i32>("select pg_backend_pid()").fetch_one(db.pool()).await.unwrap();
    let before = pid().await;
    let mut tx = db.begin().await.unwrap();
    let mut copied = tx.copy_out_raw("copy (select generate_series(1, 2000)) to stdout").await.unwrap();
    copied.next().await.unwrap().unwrap();
    drop(copied);
    drop(tx);

    let mut connection = db.pool().acquire().await.unwrap();
    for n in 1..=3_i32 {
        let got: i32 = sqlx::query_scalar("select $1").bind(n).fetch_one(&mut *connection).await.unwrap();
        assert_eq!(got, n, "the answer to another statement");
    }
    drop(connection);
    assert_ne!(pid().await, before);
    admin.pool().close().await;
}

#[workflow]
async fn session_reset_asks(wf: &Wf) -> Result<usize> {
    Ok(wf.start(session_reset_reads()).await?.result().await?.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn session_with_deallocated_prepared_statements_is_not_reused() {
    let Fixture { db: admin, database } = Fixture::new().await;
    let db = Db::connect_with(database.url().parse().unwrap(), 3).await.unwrap();
    let worker = worker(&db, jobs![session_reset_sets, session_reset_reads, session_reset_asks]).await;
    for _ in 0..4 {
        session_reset_asks().enqueue(&db).await.unwrap().result_within(PATIENCE).await.unwrap();
    }
    for statement in ["deallocate all", "discard all"] {
        // The pool closes each connection after its release, and opens a new one.
        for _ in 0..6 {
            let spoilt = db.pool().acquire().await;
            sqlx::raw_sql(statement).execute(&mut *spoilt.unwrap()).await.unwrap();
        }
        for _ in 0..6 {
            session_reset_asks().enqueue(&db).await.unwrap().result_within(PATIENCE).await.unwrap();
        }
    }
    for _ in 0..6 {
        // Its own transaction may need what the body deallocated, so the run may fail.
        let body = session_reset_sets("deallocate all".to_owned()).enqueue(&admin).await.unwrap();
        let _ = body.result_within(PATIENCE).await;
        session_reset_asks().enqueue(&db).await.unwrap().result_within(PATIENCE).await.unwrap();
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn statement_waiting_for_lock_ends_after_client_disconnects() {
    let Fixture { db, database } = Fixture::new().await;
    let mut locker = db.pool().begin().await.unwrap();
    sqlx::raw_sql("lock table runledger.outcome").execute(&mut *locker).await.unwrap();
    let other = Db::connect_with(database.url().parse().unwrap(), 1).await.unwrap();
    let waits = tokio::spawn(async move {
        let mut connection = other.pool().acquire().await.unwrap().detach();
        sqlx::raw_sql("select from runledger.outcome").execute(&mut connection).await
    });
    let waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    eventually(async || scalar::<i64>(&db, waiting).await, |n| *n == 1).await;
    waits.abort();
    assert!(waits.await.unwrap_err().is_cancelled());
    let version: i32 = scalar(&db, "select current_setting('server_version_num')::int").await;
    if version >= 140_000 {
        eventually(async || scalar::<i64>(&db, waiting).await, |n| *n == 0).await;
    } else {
        assert_eq!(scalar::<i64>(&db, waiting).await, 1, "the server does not have the setting");
    }
    locker.rollback().await.unwrap();
}
