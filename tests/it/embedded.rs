//! The embedded server, seen from an application.

use runledger_tests::Fixture;

#[tokio::test]
async fn a_table_that_the_application_names_without_a_schema_is_not_made_in_ours() {
    let fixture = Fixture::new().await;
    sqlx::raw_sql("create table account (id bigint)").execute(fixture.db.pool()).await.unwrap();
    let schema: String = sqlx::query_scalar("select schemaname from pg_tables where tablename = 'account'")
        .fetch_one(fixture.db.pool())
        .await
        .unwrap();
    assert_eq!(schema, "public");
}
