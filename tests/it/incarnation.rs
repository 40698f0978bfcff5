//! The incarnation of the server, in which the evidence of session locks counts.

use runledger_tests::{Fixture, eventually};
use sqlx::PgConnection;

async fn incarnation(connection: &mut PgConnection) -> Option<String> {
    sqlx::query_scalar("select runledger.server_incarnation()").fetch_one(connection).await.unwrap()
}

#[tokio::test]
async fn two_workers_that_are_the_first_after_a_crash_of_the_server_see_one_incarnation() {
    let fixture = Fixture::new().await;
    let [mut one, mut other] =
        [fixture.database.connect().await.unwrap(), fixture.database.connect().await.unwrap()];
    sqlx::raw_sql("delete from runledger.incarnation; begin").execute(&mut one).await.unwrap();
    let first = incarnation(&mut one).await;
    let second = tokio::spawn(async move { incarnation(&mut other).await });
    let blocked = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    let n_blocked =
        async || sqlx::query_scalar::<_, i64>(blocked).fetch_one(fixture.db.pool()).await.unwrap();
    eventually(n_blocked, |n| *n == 1).await;
    sqlx::raw_sql("commit").execute(&mut one).await.unwrap();
    let second = second.await.unwrap();
    assert!(first.is_some(), "the first has none");
    assert_eq!(second, first);
}
