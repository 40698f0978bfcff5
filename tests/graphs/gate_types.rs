//! Values that do not fit the type of a gate.

use std::time::Duration;

use runledger::prelude::*;
use runledger::{ClientError, GateLinkKey, Graph, GraphHandle, RunState};
use runledger_tests::Fixture;
use runledger_tests::rows::{execute, scalar, soon, worker};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::graph_jobs::node;

#[derive(Serialize, Deserialize)]
struct Decision {
    approved: bool,
    by: String,
    limit: Option<u8>,
}

#[job]
async fn publishes(approved: bool) -> Result<bool> {
    Ok(approved)
}

#[job]
async fn pays(decision: Decision) -> Result<u8> {
    Ok(decision.limit.unwrap_or(0))
}

async fn submitted(db: &Db) -> GraphHandle<bool> {
    let mut graph = Graph::new("release");
    let approved = graph.gate::<bool>("approved");
    let published = graph.then(publishes, (approved,));
    graph.result(published).enqueue(db).await.unwrap()
}

fn assert_refused(answer: Result<(), ClientError>, words: &[&str]) {
    let error = answer.unwrap_err();
    assert!(matches!(error, ClientError::GateValue { .. }), "{error:?}");
    let said = error.to_string();
    for word in words {
        assert!(said.contains(word), "{word:?} is not said in: {said}");
    }
}

async fn assert_open<T: runledger::Payload>(db: &Db, handle: &GraphHandle<T>, gate: &str) {
    assert_eq!(node(handle, gate).await.state, RunState::Waiting);
    assert_eq!(scalar::<i64>(db, "select count(*) from runledger.gate_decision").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn mistyped_value_is_refused_and_gate_stays_open() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![publishes]).await;
    let handle = submitted(&db).await;
    assert_refused(
        handle.gate("approved").complete(&f64::NAN).await,
        &["`approved`", "cannot be stored", "not a number"],
    );
    assert_refused(
        handle.gate("approved").complete(&()).await,
        &["`approved`", "`$` takes `true` or `false`", "`true`"],
    );
    assert_refused(handle.gate("approved").complete("yes").await, &["nothing was written"]);
    // Another program, which knows only the names.
    let by_name = db.graph::<()>(handle.id());
    assert_refused(
        by_name.gate("approved").complete(&json!({"approved": true})).await,
        &["`true` or `false`"],
    );
    assert_open(&db, &handle, "approved").await;
    handle.gate("approved").complete(&true).await.unwrap();
    assert!(soon(handle.result()).await.unwrap());
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn struct_value_of_gate_is_checked_field_by_field() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![pays]).await;
    let mut graph = Graph::new("payment");
    let decision = graph.gate::<Decision>("decision");
    let paid = graph.then(pays, (decision,));
    let handle = graph.result(paid).enqueue(&db).await.unwrap();
    let gate = || handle.gate("decision");
    assert_refused(
        gate().complete(&json!({"approved": true})).await,
        &["the field `by`", r#"{"approved":true,"by":"text"}"#],
    );
    let above = json!({"approved": true, "by": "ann", "limit": 300});
    assert_refused(gate().complete(&above).await, &["`$.limit` takes `null` or an integer from 0 to 255"]);
    assert_open(&db, &handle, "decision").await;
    let accepts = gate().value_type().await.unwrap().unwrap();
    assert_eq!(accepts.to_string(), "an object with `approved`, `by`, `limit`");
    gate().complete(&Decision { approved: true, by: "ann".to_owned(), limit: Some(3) }).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 3);
    worker.stop().await;
}

#[tokio::test]
async fn link_to_gate_refuses_mistyped_value() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let handle = submitted(&db).await;
    let key = GateLinkKey::new([1; 32]).unwrap();
    let text = handle.gate("approved").link(&key, Duration::from_secs(3600)).await.unwrap();
    let link = db.gate_link(&key, &text).unwrap();
    assert_refused(link.gate().complete(&1).await, &["`true` or `false`"]);
    assert_open(&db, &handle, "approved").await;
    link.gate().complete(&false).await.unwrap();
}

#[tokio::test]
async fn gates_of_additions_and_recovered_graphs_keep_their_types() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut graph = Graph::new("grows");
    graph.gate::<()>("window");
    let handle = graph.enqueue(&db).await.unwrap();
    let mut more = Graph::new("grows");
    more.gate::<u8>("added");
    handle.extend_from("window").append("1", more).await.unwrap();
    assert_refused(handle.gate("added").complete(&-1).await, &["an integer from 0 to 255"]);
    handle.cancel("enough").await.unwrap();
    let again = handle.recover("again").await.unwrap();
    assert_refused(again.gate("added").complete(&-1).await, &["an integer from 0 to 255"]);
    again.gate("added").complete(&1).await.unwrap();
}

/// Simulates gates of a program that does not know gate types.
#[tokio::test]
async fn gate_without_stored_type_accepts_any_value() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let handle = submitted(&db).await;
    execute(&db, "delete from runledger.gate").await;
    assert_eq!(handle.gate("approved").value_type().await.unwrap(), None);
    handle.gate("approved").complete(&()).await.unwrap();
}

#[tokio::test]
async fn gate_type_of_newer_program_is_not_checked() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let handle = submitted(&db).await;
    execute(&db, r#"update runledger.gate set accepts = '{"shape": {"hologram": 3}}'"#).await;
    handle.gate("approved").complete("yes").await.unwrap();
}

/// Adds a gate to a graph during `act`, which uses a pool of one connection. Returns `act`'s
/// result.
async fn added_during<T>(act: impl AsyncFn(GraphHandle<()>) -> T) -> (T, GraphHandle<()>, Fixture) {
    let fixture = Fixture::new().await;
    let mut graph = Graph::new("grows");
    graph.gate::<()>("more");
    let handle = graph.enqueue(&fixture.db).await.unwrap();
    // The act and the addition take turns with the connection.
    let narrow = Db::connect_with(fixture.database.url().parse().unwrap(), 1).await.unwrap();
    let held = narrow.pool().acquire().await.unwrap();
    let added = async {
        let turn = narrow.pool().acquire().await.unwrap();
        let mut addition = Graph::new("grows");
        let gate = addition.gate::<bool>("added");
        addition.then(publishes, (gate,));
        handle.extend_from("more").append("1", addition).await.unwrap();
        drop(turn);
    };
    let (acted, (), ()) = tokio::join!(act(narrow.graph(handle.id())), added, async { drop(held) });
    (acted, handle, fixture)
}

#[tokio::test]
async fn gate_added_during_decision_is_checked_against_its_type() {
    let decide = async |graph: GraphHandle<()>| graph.gate("added").complete("yes").await;
    let (decided, handle, fixture) = added_during(decide).await;
    assert_refused(decided, &["`added`", "`true`"]);
    assert_open(&fixture.db, &handle, "added").await;
}

#[tokio::test]
async fn gate_added_during_link_signing_is_checked_against_its_type() {
    let key = GateLinkKey::new([7; 32]).unwrap();
    let sign = async |graph: GraphHandle<()>| {
        graph.gate("added").link_to_complete(&key, Duration::from_secs(60), "yes").await
    };
    let (signed, _, _fixture) = added_during(sign).await;
    assert_refused(signed.map(drop), &["`added`", "`true`"]);
}
