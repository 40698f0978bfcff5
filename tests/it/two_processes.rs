//! Two worker processes on one database, with the default timings: the runs of one that is killed go on in the other.

use std::collections::HashMap;
use std::time::Duration;

use runledger::{AnyCall, WorkerInfo, enqueue_all};
use runledger_tests::{Fixture, eventually};
use tokio::process::{Child, Command};
use uuid::Uuid;

use crate::rows::{execute, scalar};

/// What the README promises for a killed process at the default timings, by the database's clock.
const PROMISED: Duration = Duration::from_secs(6);

fn worker(name: &str, fixture: &Fixture) -> Child {
    Command::new(env!("CARGO_BIN_EXE_gated_worker"))
        .arg(name)
        .env("DATABASE_URL", fixture.database.url())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Which worker holds which run.
async fn holders(fixture: &Fixture) -> HashMap<Uuid, i64> {
    let held = "select run_id, worker_id from runledger.lease";
    let rows: Vec<(Uuid, i64)> = sqlx::query_as(held).fetch_all(fixture.db.pool()).await.unwrap();
    rows.into_iter().collect()
}

fn named(name: &str, workers: &[WorkerInfo]) -> i64 {
    workers.iter().find(|worker| worker.name == name).unwrap().worker_id
}

#[tokio::test]
async fn the_runs_of_a_killed_process_go_on_in_another_within_six_seconds_with_the_default_timings() {
    let fixture = Fixture::new().await;
    let (mut killed, _other) = (worker("killed", &fixture), worker("other", &fixture));
    let workers = async || fixture.db.workers().await.unwrap();
    let workers = eventually(workers, |workers| workers.len() == 2).await;
    let (dead, alive) = (named("killed", &workers), named("other", &workers));
    // A process takes two runs at most, so whichever way they fall, each has some.
    let calls = (1..=4).map(|n| AnyCall::by_name("gated", &serde_json::json!({ "n": n })));
    let runs = enqueue_all(calls, &fixture.db).await.unwrap();
    let recorded = "select count(*) from runledger.step";
    eventually(async || scalar::<i64>(&fixture.db, recorded).await, |n| *n == 4).await;
    let holders = holders(&fixture).await;
    assert!(holders.values().any(|holder| *holder == dead), "the killed process holds a run: {holders:?}");

    // In the middle between two heartbeats: a loaded machine may take a second more than the protocol does.
    let silence = format!(
        "select extract(epoch from clock_timestamp() - heartbeat_at)::float8 from runledger.worker where worker_id = {dead}"
    );
    let silence = async || scalar::<f64>(&fixture.db, &silence).await;
    eventually(silence, |seconds| (1.0..1.6).contains(seconds)).await;
    killed.kill().await.unwrap();
    let killed_at: f64 = scalar(&fixture.db, "select extract(epoch from clock_timestamp())::float8").await;
    execute(&fixture.db, "create table public.gate ()").await;
    let ended = "select count(*) from runledger.outcome where state = 'completed'";
    eventually(async || scalar::<i64>(&fixture.db, ended).await, |n| *n == 4).await;

    let declared = format!(
        "select extract(epoch from died_at)::float8 - {killed_at} from runledger.worker where worker_id = {dead}"
    );
    let declared: f64 = scalar(&fixture.db, &declared).await;
    for run in &runs {
        let ended = "select worker_id, extract(epoch from started_at)::float8 - $2 from runledger.outcome where run_id = $1";
        let (ended_by, began): (i64, f64) = sqlx::query_as(ended)
            .bind(run.run_id)
            .bind(killed_at)
            .fetch_one(fixture.db.pool())
            .await
            .unwrap();
        assert_eq!(ended_by, alive, "the survivor ended run {}", run.run_id);
        // A run that did not move began before the kill.
        assert!(
            began <= PROMISED.as_secs_f64(),
            "run {} went on {began:.2} s after the kill, and the process was declared dead after {declared:.2} s",
            run.run_id
        );
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
