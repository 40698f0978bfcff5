//! Two worker processes on one database, with the default timings: the runs of one that is killed go on in the other.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics, in its helpers too")]

use std::time::Instant;

use runledger::{AnyCall, WorkerInfo, enqueue_all};
use runledger_tests::{Fixture, eventually};
use tokio::process::{Child, Command};

fn worker(name: &str, fixture: &Fixture) -> Child {
    Command::new(env!("CARGO_BIN_EXE_gated_worker"))
        .arg(name)
        .env("DATABASE_URL", fixture.database.url())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// The living workers that hold two runs each, by name.
async fn busy_workers(fixture: &Fixture) -> Vec<WorkerInfo> {
    let mut workers = fixture.db.workers().await.unwrap();
    workers.retain(|worker| worker.n_held == 2);
    workers.sort_by(|one, other| one.name.cmp(&other.name));
    workers
}

async fn count(fixture: &Fixture, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(fixture.db.pool()).await.unwrap()
}

#[tokio::test]
async fn the_runs_of_a_killed_process_go_on_in_another_with_the_default_timings() {
    let fixture = Fixture::new().await;
    let (mut killed, _other) = (worker("killed", &fixture), worker("other", &fixture));
    eventually(async || fixture.db.workers().await.unwrap().len(), |n| *n == 2).await;
    let calls = (1..=4).map(|n| AnyCall::by_name("gated", &serde_json::json!({ "n": n })));
    let runs = enqueue_all(calls, &fixture.db).await.unwrap();
    let workers = eventually(async || busy_workers(&fixture).await, |workers| workers.len() == 2).await;
    eventually(async || count(&fixture, "select count(*) from runledger.step").await, |n| *n == 4).await;
    let [dead, alive] = [workers[0].worker_id, workers[1].worker_id];
    let mut holders = Vec::new();
    for run in &runs {
        holders.push(fixture.db.run(run.run_id).await.unwrap().worker_id);
    }

    killed.kill().await.unwrap();
    let began = Instant::now();
    sqlx::raw_sql("create table public.gate ()").execute(fixture.db.pool()).await.unwrap();
    let ended = "select count(*) from runledger.outcome where state = 'completed'";
    eventually(async || count(&fixture, ended).await, |n| *n == 4).await;
    println!("all runs had ended {:.1} s after the kill", began.elapsed().as_secs_f64());

    let mut moved = 0;
    for (run, holder) in runs.iter().zip(holders) {
        let info = fixture.db.run(run.run_id).await.unwrap();
        assert_eq!(info.worker_id, Some(alive), "the survivor ended {info:?}");
        let steps: Vec<(String, i32)> =
            sqlx::query_as("select key, claims from runledger.step where run_id = $1 order by ordinal")
                .bind(run.run_id)
                .fetch_all(fixture.db.pool())
                .await
                .unwrap();
        let second_claim = if holder == Some(dead) { 2 } else { 1 };
        moved += i32::from(holder == Some(dead));
        assert_eq!(steps, [("gated_first".to_owned(), 1), ("gated_second".to_owned(), second_claim)]);
    }
    assert_eq!(moved, 2, "the killed process held two of the runs");
}
