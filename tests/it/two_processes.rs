//! Two worker processes on one database with the default timings. When one is killed, the other
//! continues its runs.

use std::collections::HashMap;

use runledger::{AnyCall, WorkerInfo, enqueue_all};
use runledger_tests::rows::{execute, scalar};
use runledger_tests::{Fixture, eventually};
use tokio::process::{Child, Command};
use uuid::Uuid;

fn worker(name: &str, fixture: &Fixture) -> Child {
    Command::new(env!("CARGO_BIN_EXE_gated_worker"))
        .arg(name)
        .env("DATABASE_URL", fixture.database.url())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Returns the worker of each claimed run.
async fn holders(fixture: &Fixture) -> HashMap<Uuid, i64> {
    let held = "select run_id, worker_id from runledger.lease";
    let rows: Vec<(Uuid, i64)> = sqlx::query_as(held).fetch_all(fixture.db.pool()).await.unwrap();
    rows.into_iter().collect()
}

fn named(name: &str, workers: &[WorkerInfo]) -> i64 {
    workers.iter().find(|worker| worker.name == name).unwrap().worker_id
}

#[tokio::test]
async fn runs_of_killed_process_continue_in_another_before_lease_expires() {
    let fixture = Fixture::new().await;
    let (mut killed, _other) = (worker("killed", &fixture), worker("other", &fixture));
    let workers = async || fixture.db.workers().await.unwrap();
    let workers = eventually(workers, |workers| workers.len() == 2).await;
    let (dead, alive) = (named("killed", &workers), named("other", &workers));
    // A process takes at most two runs, so each process gets some.
    let calls = (1..=4).map(|n| AnyCall::by_name("gated", &serde_json::json!({ "n": n })));
    let runs = enqueue_all(calls, &fixture.db).await.unwrap();
    let recorded = "select count(*) from runledger.step";
    eventually(async || scalar::<i64>(&fixture.db, recorded).await, |n| *n == 4).await;
    let holders = holders(&fixture).await;
    assert!(holders.values().any(|holder| *holder == dead), "the killed process holds a run: {holders:?}");

    killed.kill().await.unwrap();
    execute(&fixture.db, "create table public.gate ()").await;
    let ended = "select count(*) from runledger.outcome where state = 'completed'";
    eventually(async || scalar::<i64>(&fixture.db, ended).await, |n| *n == 4).await;

    // Its free session lock proves its death after 5 s, before its lease of 30 s expires. The
    // benchmark `recovery-default` measures the delay.
    let why = format!("select died_why from runledger.worker where worker_id = {dead}");
    assert_eq!(scalar::<String>(&fixture.db, &why).await, "its session lock was free");
    for run in &runs {
        let ended_by: i64 = sqlx::query_scalar("select worker_id from runledger.outcome where run_id = $1")
            .bind(run.run_id)
            .fetch_one(fixture.db.pool())
            .await
            .unwrap();
        assert_eq!(ended_by, alive, "the survivor ended run {}", run.run_id);
        let steps: Vec<(String, i32)> =
            sqlx::query_as("select key, claims from runledger.step where run_id = $1 order by ordinal")
                .bind(run.run_id)
                .fetch_all(fixture.db.pool())
                .await
                .unwrap();
        let second_claim = if holders[&run.run_id] == dead { 2 } else { 1 };
        assert_eq!(steps, [("gated_first".to_owned(), 1), ("gated_second".to_owned(), second_claim)]);
    }
}
