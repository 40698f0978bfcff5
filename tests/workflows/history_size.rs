//! A run whose records grow beyond their limit, and the other runs of its worker.

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

/// Gives the step on record an output of so many bytes.
fn grown_to(n_bytes: u32) -> String {
    format!(
        "update runledger.step set output = ('\"' || repeat('x', {n_bytes}) || '\"')::json where ordinal = 0"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn run_with_a_history_above_the_limit_is_blocked_and_others_go_on() {
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
    assert!(reason.contains("bytes on record") && reason.contains("continue_with"), "{reason}");
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
async fn outputs_of_steps_under_way_are_refused_where_the_history_is_full() {
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
    assert!(refused[0].message.contains("continue_with"), "{}", refused[0].message);
    worker.stop().await;
}
