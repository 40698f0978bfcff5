//! The embedded server, seen from an application.

use runledger_tests::Fixture;

#[tokio::test]
async fn unqualified_application_table_is_created_in_public_schema() {
    let fixture = Fixture::new().await;
    sqlx::raw_sql("create table account (id bigint)").execute(fixture.db.pool()).await.unwrap();
    let schema: String = sqlx::query_scalar("select schemaname from pg_tables where tablename = 'account'")
        .fetch_one(fixture.db.pool())
        .await
        .unwrap();
    assert_eq!(schema, "public");
}
