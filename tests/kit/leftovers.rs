//! The kit drops the databases that it created.

use runledger::testing::Testing;
use sqlx::AssertSqlSafe;

async fn name(test: &Testing) -> String {
    sqlx::query_scalar("select current_database()").fetch_one(test.db().pool()).await.unwrap()
}

/// Returns the server's databases whose names begin with `beginning`.
async fn databases(test: &Testing, beginning: &str) -> Vec<String> {
    let names = "select datname::text from pg_database where starts_with(datname, $1)";
    sqlx::query_scalar(names).bind(beginning).fetch_all(test.db().pool()).await.unwrap()
}

#[tokio::test]
async fn databases_of_dead_processes_are_dropped_and_live_ones_remain() {
    let keeper = Testing::new().await.unwrap();
    let left_over = format!("rl_kit_dead{}_0", std::process::id());
    let create = AssertSqlSafe(format!("create database {left_over}"));
    sqlx::query(create).execute(keeper.db().pool()).await.unwrap();
    let server = keeper.db().pool().connect_options().as_ref().clone().database("postgres");

    let test = Testing::on(sqlx::ConnectOptions::to_url_lossy(&server).as_str()).await.unwrap();
    let kept = databases(&keeper, "rl_kit_").await;
    assert!(!kept.contains(&left_over), "{kept:?}");
    assert!(kept.contains(&name(&keeper).await), "{kept:?}");

    let own = name(&test).await;
    let own = &own[..=own.rfind('_').unwrap()];
    assert_eq!(databases(&keeper, own).await.len(), 2, "the template, and the database of the test");
    drop(test);
    assert_eq!(databases(&keeper, own).await, Vec::<String>::new());
}
