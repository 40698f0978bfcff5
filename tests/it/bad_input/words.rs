//! Texts of people: reasons to cancel, pause or disable, names of people, and failures of gates.

use runledger::prelude::*;
use runledger::{Graph, JobOverrides, RunState};
use runledger_tests::Fixture;

#[job(name = "bad_input.waits")]
async fn waits() -> Result<()> {
    Ok(())
}

/// A text with a character that the database refuses, and longer than the stored maximum.
fn words() -> String {
    format!("not\0today{}", "!".repeat(10_000))
}

#[tokio::test]
async fn reason_with_nul_or_excess_length_is_cleaned_and_truncated() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let begins = "not\u{fffd}today!!";
    let is_kept = |kept: &str| kept.contains(begins) && kept.len() < 9_000 && kept.contains("bytes more)");
    let run = waits().enqueue(&db).await.unwrap();
    run.pause(&words()).await.unwrap();
    let paused = run.info().await.unwrap().pause_reason.unwrap();
    assert!(is_kept(&paused), "{paused}");
    run.cancel(&words()).await.unwrap();
    let error = run.info().await.unwrap().error.unwrap().message;
    assert!(is_kept(&error), "{error}");
    db.set_overrides("bad_input.waits", JobOverrides::new().disabled(words())).await.unwrap();
    let disabled = db.overrides().await.unwrap().remove(0).overrides.why_disabled().unwrap().to_owned();
    assert!(is_kept(&disabled), "{disabled}");

    let mut graph = Graph::new("words");
    graph.gate::<u64>("gate");
    let graph = graph.enqueue(&db).await.unwrap();
    graph.gate("gate").by(words()).reason(words()).complete(&1).await.unwrap();
    let gate = graph.nodes().await.unwrap().remove(0);
    for kept in [gate.decided_by.unwrap(), gate.reason.unwrap()] {
        assert!(is_kept(&kept), "{kept}");
    }
}

#[tokio::test]
async fn repeated_gate_decision_with_truncated_text_is_same_decision() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut graph = Graph::new("words");
    graph.gate::<u64>("fails");
    graph.gate::<u64>("cancelled");
    graph.gate::<String>("says");
    let graph = graph.enqueue(&db).await.unwrap();
    for _ in 0..2 {
        graph.gate("fails").fail(&words()).await.unwrap();
        graph.gate("cancelled").cancel(&words()).await.unwrap();
        graph.gate("says").complete("in words").await.unwrap();
    }
    let states: Vec<RunState> = graph.nodes().await.unwrap().iter().map(|node| node.state).collect();
    assert_eq!(states, [RunState::Cancelled, RunState::Failed, RunState::Completed]);
    graph.gate("fails").fail("other words").await.unwrap_err();
}
