#![allow(clippy::unwrap_used, reason = "tests")]

use super::leftovers::{is_left_over, sweep};
use super::*;

#[test]
fn connection_string_has_only_its_database_replaced() {
    for (url, expected) in [
        ("postgres://u:p@h:1/old?host=/tmp/x&a=b", "postgres://u:p@h:1/new?host=/tmp/x&a=b"),
        ("postgres://h", "postgres://h/new"),
        ("postgres://h?host=/tmp/x", "postgres://h/new?host=/tmp/x"),
    ] {
        assert_eq!(with_database(url, "new"), expected);
    }
}

#[test]
fn database_of_live_process_or_other_machine_is_no_leftover() {
    let own = format!("rl_test_local_{}_1f_0", std::process::id());
    assert!(!is_left_over(&own, "rl_test_local_"));
    assert!(!is_left_over("rl_test_0badcafe_2147483646_1f_0", "rl_test_local_"));
    assert!(!is_left_over("rl_test_local_x", "rl_test_local_"));
    assert!(is_left_over("rl_test_local_2147483646_1f_0", "rl_test_local_"));
}

#[tokio::test]
async fn sweep_drops_only_databases_of_dead_processes() {
    let ours = TestDb::new("nothing", async |_: &str| Ok::<(), sqlx::Error>(())).await;
    let host = Host::get().await.unwrap();
    let mut admin = PgConnection::connect(&host.admin_url).await.unwrap();
    // No process has an id this high.
    let dead = format!("{}2147483646_{:x}_0", host.prefix, std::process::id());
    execute(&mut admin, format!("create database {dead} template template0")).await.unwrap();
    sweep(&host.admin_url, &host.prefix).await.unwrap();
    let left: Option<i32> = sqlx::query_scalar("select 1 from pg_database where datname = $1")
        .bind(&dead)
        .fetch_optional(&mut admin)
        .await
        .unwrap();
    assert_eq!(left, None);
    ours.connect().await.unwrap();
}

#[tokio::test]
async fn dropped_template_is_created_again() {
    let nothing = async |_: &str| Ok::<(), sqlx::Error>(());
    let text = format!("dropped by {}", std::process::id());
    TestDb::new(&text, nothing).await;
    let mut admin = PgConnection::connect(&Host::get().await.unwrap().admin_url).await.unwrap();
    execute(&mut admin, format!("drop database rl_t_{:016x}", fnv(&text))).await.unwrap();
    TestDb::new(&text, nothing).await.connect().await.unwrap();
}

#[tokio::test]
async fn database_is_dropped_after_its_creating_thread_ends() {
    let nothing = async |_: &str| Ok::<(), sqlx::Error>(());
    let kept = TestDb::new("nothing", nothing).await;
    let made = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(TestDb::new("nothing", nothing))
    });
    let made = made.join().unwrap();
    crate::eventually(async || made.connect().await.is_err(), |is_gone| *is_gone).await;
    kept.connect().await.unwrap();
}
