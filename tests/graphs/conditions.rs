//! Nodes that run only if another node returns true.

use runledger::prelude::*;
use runledger::{
    AnyCall, ClientError, FailureKind, Graph, GraphHandle, GraphState, Outcome, RunState, value,
};
use runledger_tests::Fixture;
use runledger_tests::check::graphs;
use runledger_tests::rows::{scalar, soon, until, worker};
use serde_json::json;

use crate::graph_jobs::{node, refuses};

#[job]
async fn is_even(n: u64) -> Result<bool> {
    Ok(n.is_multiple_of(2))
}

#[job]
async fn double(n: u64) -> Result<u64> {
    Ok(2 * n)
}

#[job]
async fn tells(end: Outcome<u64>) -> Result<String> {
    Ok(match end {
        Outcome::Completed(n) => format!("completed with {n}"),
        Outcome::Failed(failure) => format!("failed: {failure}"),
        Outcome::Cancelled(failure) => format!("{:?}: {failure}", failure.kind),
    })
}

fn all() -> [&'static runledger::Definition; 4] {
    jobs![is_even, double, refuses, tells]
}

/// Returns the failure of a graph, with its causes.
async fn failure_of<T: runledger::Payload + std::fmt::Debug>(handle: &GraphHandle<T>) -> String {
    let error = soon(handle.result()).await.unwrap_err();
    let ClientError::RunFailed { failure, .. } = error else { panic!("{error:?}") };
    format!("{}: {}", failure.message, failure.causes.join("; "))
}

/// `double` runs if the number is even, `double#2` depends on it, and `tells` accepts any outcome
/// of `double#2`.
fn conditional(n: u64) -> Graph {
    let mut graph = Graph::new("conditional");
    let even = graph.call(is_even(n));
    let doubled = graph.call(double(n));
    graph.only_if(doubled, even);
    let again = graph.then(double, (doubled,));
    graph.then(tells, (again.on_any_outcome(),));
    graph
}

#[tokio::test(flavor = "multi_thread")]
async fn true_condition_runs_node_and_false_skips_it_with_dependents() {
    let Fixture { db, database } = Fixture::new().await;
    let worker = worker(&db, all()).await;
    let even = conditional(4).enqueue(&db).await.unwrap();
    soon(even.result()).await.unwrap();
    let said = async |handle: &GraphHandle<()>| -> String {
        let run_id = node(handle, "tells").await.run_id;
        scalar(&db, &format!("select output::text from runledger.outcome where run_id = '{run_id}'")).await
    };
    assert_eq!(said(&even).await, "\"completed with 16\"");

    let odd = conditional(3).enqueue(&db).await.unwrap();
    soon(odd.result()).await.unwrap();
    assert_eq!(odd.graph_state().await.unwrap(), GraphState::Completed, "what was skipped is no error");
    for name in ["double", "double#2"] {
        let node = node(&odd, name).await;
        assert!(node.is_skipped(), "{node:?}");
        assert_eq!(node.state, RunState::Cancelled);
    }
    let why = node(&odd, "double").await.error.unwrap().to_string();
    assert!(why.contains("skipped: the node `is_even` gave `false`"), "{why}");
    let why = node(&odd, "double#2").await.error.unwrap().to_string();
    assert!(why.contains("skipped: the node `double` was skipped"), "{why}");
    assert!(said(&odd).await.starts_with("\"Skipped: "), "{}", said(&odd).await);
    let mut connection = database.connect().await.unwrap();
    assert_eq!(graphs::wrong(&mut connection, 0).await.unwrap(), Vec::<String>::new());
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_dependency_of_skipped_node_or_skipped_result_fails_graph() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, all()).await;
    let mut graph = Graph::new("beside");
    let odd = graph.call(is_even(3));
    let refused = graph.call(refuses(1));
    let doubled = graph.then(double, (refused,));
    graph.only_if(doubled, odd);
    let handle = graph.enqueue(&db).await.unwrap();
    assert!(failure_of(&handle).await.contains("`refuses`: "));
    assert_eq!(handle.graph_state().await.unwrap(), GraphState::Failed);

    // Its dependent was skipped before, so no other node would report the failure.
    let mut graph = Graph::new("later");
    let odd = graph.call(is_even(3));
    let doubled = graph.call(double(1));
    graph.only_if(doubled, odd);
    let gate = graph.gate::<()>("gate");
    let last = graph.then(double, (doubled,));
    graph.after(last, gate);
    let handle = graph.enqueue(&db).await.unwrap();
    until(&db, node(&handle, "double#2").await.run_id, |info| info.state == RunState::Cancelled).await;
    handle.gate("gate").fail("no").await.unwrap();
    assert!(failure_of(&handle).await.contains("`gate`: "));

    let mut graph = Graph::new("result");
    let odd = graph.call(is_even(3));
    let doubled = graph.call(double(1));
    graph.only_if(doubled, odd);
    let handle = graph.result(doubled).enqueue(&db).await.unwrap();
    assert!(failure_of(&handle).await.contains("1 skipped"));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn non_boolean_condition_fails_node_and_conditional_gate_is_refused() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, all()).await;
    let mut graph = Graph::new("data");
    graph.node("decides", AnyCall::by_name("double", &json!({"n": 4})));
    let node_of = graph.node("runs", AnyCall::by_name("double", &json!({"n": 5})));
    graph.only_if(node_of, "decides");
    let handle = graph.enqueue(&db).await.unwrap();
    assert!(soon(handle.result()).await.is_err());
    let failure = node(&handle, "runs").await.error.unwrap();
    assert_eq!(failure.kind, FailureKind::Decode);
    assert!(
        failure
            .to_string()
            .contains("is the output of node `decides`, and that is neither `true` nor `false`"),
        "{failure}"
    );

    let mut graph = Graph::new("gates");
    let even = graph.call(is_even(4));
    let gate = graph.gate::<()>("gate");
    graph.only_if(gate, even).feed(gate, "n", even).only_if(even, "absent");
    let error = graph.enqueue(&db).await.unwrap_err().to_string();
    for part in [
        "the gate `gate` is given a condition, and nobody would read it",
        "the gate `gate` is given the parameter `n`, and nobody would read it",
        "`is_even` needs `absent`, which is not in it",
    ] {
        assert!(error.contains(part), "{part:?} is not said in:\n{error}");
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn added_node_is_skipped_after_skipped_dependency_or_false_gate() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, all()).await;
    let mut graph = Graph::new("addition");
    let approved = graph.gate::<bool>("approved");
    graph.gate::<()>("window");
    let doubled = graph.call(double(1));
    graph.only_if(doubled, approved);
    let handle = graph.enqueue(&db).await.unwrap();
    handle.gate("approved").complete(&false).await.unwrap();
    until(&db, node(&handle, "double").await.run_id, |info| info.state == RunState::Cancelled).await;
    let mut more = Graph::new("addition");
    let doubled = more.existing_node::<u64>("double");
    let approved = more.existing_node::<bool>("approved");
    let again = more.then(double, (doubled,));
    more.configure(again).name("needs it");
    let own = more.then(double, (value(1),));
    more.configure(own).name("has the condition");
    more.only_if(own, approved);
    handle.extend_from("window").append("1", more).await.unwrap();
    assert!(node(&handle, "needs it").await.is_skipped());
    until(&db, node(&handle, "has the condition").await.run_id, |info| info.state == RunState::Cancelled)
        .await;
    assert!(node(&handle, "has the condition").await.is_skipped());
    handle.gate("window").complete(&()).await.unwrap();
    soon(handle.result()).await.unwrap();
    worker.stop().await;
}

#[test]
fn graph_picture_shows_condition_of_node() {
    let picture = conditional(1).picture().unwrap().to_string();
    assert!(picture.contains("← is_even (if true)"), "{picture}");
}
