//! A run whose history exceeds its size limit, and the other runs of its worker.

use runledger::prelude::*;
use runledger::{Limits, RunState};
use runledger_tests::Fixture;
use runledger_tests::rows::{execute, soon, until, worker};

#[job]
async fn history_says(n_bytes: usize) -> Result<String> {
    Ok("x".repeat(n_bytes))
}

#[workflow]
async fn history_grows(wf: &Wf) -> Result<usize> {
    let said = wf.run(history_says(1)).await?;
    let more: usize = wf.signal("more").await?;
    Ok(said.len() + wf.run(history_says(more)).await?.len())
}

/// Gives the recorded step an output of `n_bytes`.
fn grown_to(n_bytes: u32) -> String {
    format!(
        "update runledger.step set output = ('\"' || repeat('x', {n_bytes}) || '\"')::json where ordinal = 0"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn run_with_oversized_history_is_blocked_and_others_proceed() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![history_grows, history_says]).await;
    let large = history_grows().enqueue(&db).await.unwrap();
    until(&db, large.id(), |info| info.state == RunState::Waiting).await;
    execute(&db, &grown_to(135_000_000)).await;
    large.signal("more", &1).await.unwrap();
    assert_eq!(soon(history_says(3).enqueue(&db).await.unwrap().result()).await.unwrap(), "xxx");
    let has_left = |state: RunState| state.is_terminal() || state == RunState::Blocked;
    let info = until(&db, large.id(), |info| has_left(info.state)).await;
    assert_eq!(info.state, RunState::Blocked);
    let reason = info.error.unwrap().message;
    assert!(reason.contains("the history of this run has") && reason.contains("continue_as_new"), "{reason}");
    worker.stop().await;
}

#[workflow]
async fn history_grows_at_once(wf: &Wf) -> Result<usize> {
    let said = wf.run(history_says(1)).await?;
    let n_steps: usize = wf.signal("go").await?;
    let steps = (0..n_steps).map(|_| wf.run(history_says(16_000_000)));
    let said = [Ok(said)].into_iter().chain(futures::future::join_all(steps).await);
    Ok(said.filter(Result::is_ok).count())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn outputs_in_flight_are_refused_when_history_is_full() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(
        &db.clone().with_limits(Limits::DEFAULT.step(16 << 20)),
        jobs![history_grows_at_once, history_says],
    )
    .await;
    let run = history_grows_at_once().enqueue(&db).await.unwrap();
    until(&db, run.id(), |info| info.state == RunState::Waiting).await;
    execute(&db, &grown_to(130_000_000)).await;
    run.signal("go", &10).await.unwrap();
    assert_eq!(soon(run.result()).await.unwrap(), 1 + 8);
    let steps = run.steps().await.unwrap();
    let refused: Vec<_> = steps.iter().filter_map(|step| step.result.as_ref().err()).collect();
    assert_eq!(refused.len(), 2);
    assert!(refused[0].message.contains("continue_as_new"), "{}", refused[0].message);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn run_with_unreadably_large_history_is_blocked_and_others_proceed() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![history_grows, history_says]).await;
    let large = history_grows().enqueue(&db).await.unwrap();
    until(&db, large.id(), |info| info.state == RunState::Waiting).await;
    let others = "insert into runledger.step (run_id, key, ordinal, fingerprint, output, seen_len, claims)
                  select run_id, 'x#' || n, n, 1, output, 0, 1 from runledger.step cross join generate_series(1, 10) n";
    execute(&db, &format!("{}; {others}", grown_to(120_000_000))).await;
    large.signal("more", &1).await.unwrap();
    let info = until(&db, large.id(), |info| info.state == RunState::Blocked).await;
    let why = info.error.unwrap().to_string();
    assert!(why.contains("`content` of this run cannot be read"), "{why}");
    assert_eq!(soon(history_says(3).enqueue(&db).await.unwrap().result()).await.unwrap(), "xxx");
    worker.stop().await;
}

#[job]
async fn history_takes_back(_what: String) -> Result<()> {
    Ok(())
}

#[job(max_attempts = 1)]
async fn history_fails() -> Result<()> {
    Err("x".repeat(16_000_000))?
}

#[workflow]
async fn history_of_others(wf: &Wf, fails: bool) -> Result<()> {
    let saga = wf.saga();
    for _ in 0..10 {
        if fails {
            wf.run(history_fails()).await.unwrap_err();
        } else {
            saga.run(history_says(1), |_| history_takes_back("x".repeat(16_000_000))).await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn failures_and_compensation_calls_count_toward_history_limit() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let db = db.with_limits(Limits::DEFAULT.input(16 << 20).error(16 << 20));
    let worker = worker(&db, jobs![history_of_others, history_says, history_fails, history_takes_back]).await;
    for fails in [true, false] {
        let run = history_of_others(fails).enqueue(&db).await.unwrap();
        let has_left = |state: RunState| state.is_terminal() || state == RunState::Blocked;
        let info = until(&db, run.id(), |info| has_left(info.state)).await;
        assert_eq!(info.state, RunState::Blocked, "{fails}");
        let why = info.error.unwrap().to_string();
        assert!(why.contains("the history of this run has"), "{why}");
    }
    worker.stop().await;
}
