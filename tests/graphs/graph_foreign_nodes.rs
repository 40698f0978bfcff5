//! Nodes of one graph that are used in another.

use std::time::Duration;

use runledger::prelude::*;
use runledger::{AnyCall, ClientError, Graph, GraphHandle, Node};
use runledger_tests::Fixture;
use runledger_tests::rows::scalar;
use serde_json::json;

use crate::graph_jobs::add;

/// A graph with one gate, and a node of another graph with the index of that gate.
fn graph_and_foreign_node() -> (Graph, Node<u64>) {
    let foreign = Graph::new("other").call(add(1, 1));
    let mut graph = Graph::new("own");
    graph.gate::<bool>("gate");
    (graph, foreign)
}

type Change = fn(&mut Graph, Node<u64>);

/// Every method that changes a given node, with the method's name.
fn methods() -> [(&'static str, Change); 4] {
    [
        ("after", |graph, node| {
            graph.after(node, "gate");
        }),
        ("feed", |graph, node| {
            graph.feed(node, "b", "gate");
        }),
        ("only_if", |graph, node| {
            graph.only_if(node, "gate");
        }),
        ("configure", |graph, node| {
            graph.configure(node).priority(5).deadline(Duration::from_secs(1));
        }),
    ]
}

fn assert_refused(answer: Result<GraphHandle<()>, ClientError>, method: &str) {
    let error = answer.expect_err(method);
    assert!(matches!(error, ClientError::Graph(_)), "{error:?}");
    let said = error.to_string();
    assert!(said.contains(&format!("`{method}` is given a node of another graph")), "{said}");
}

#[tokio::test]
async fn graph_refuses_foreign_node_as_dependent() {
    let Fixture { db, database: _database } = Fixture::new().await;
    for (method, change) in methods() {
        let (mut graph, foreign) = graph_and_foreign_node();
        change(&mut graph, foreign);
        assert_refused(graph.enqueue(&db).await, method);
    }
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run").await, 0);
}

/// The node's index is out of range, so that the method cannot change another node by accident.
#[tokio::test]
async fn graph_refuses_foreign_node_with_out_of_range_index() {
    let Fixture { db, database: _database } = Fixture::new().await;
    for (method, change) in methods() {
        let mut other = Graph::new("other");
        let _ = other.call(add(1, 1));
        let foreign = other.call(add(1, 2));
        let (mut graph, _) = graph_and_foreign_node();
        change(&mut graph, foreign);
        assert_refused(graph.enqueue(&db).await, method);
    }
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run").await, 0);
}

#[tokio::test]
async fn graph_error_names_every_use_of_foreign_nodes() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let (mut graph, foreign) = graph_and_foreign_node();
    for (_, change) in methods() {
        change(&mut graph, foreign);
    }
    let said = graph.result(foreign).enqueue(&db).await.unwrap_err().to_string();
    for (method, _) in methods() {
        assert_eq!(said.matches(&format!("`{method}` is given")).count(), 1, "{method}: {said}");
    }
    assert!(said.contains("`result` is given a node of another graph"), "{said}");
}

#[tokio::test]
async fn addition_refuses_foreign_node_as_dependent() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut graph = Graph::new("own");
    let gate = graph.gate::<u64>("gate");
    let submitted = graph.enqueue(&db).await.unwrap();
    for key in ["after", "configure"] {
        let mut more = Graph::new("own");
        more.node("new", AnyCall::by_name("add", &json!({"a": 1, "b": 2})));
        if key == "after" {
            more.after(gate, "new");
        } else {
            more.configure(gate).name("renamed");
        }
        let said = submitted.extend_from("gate").append(key, more).await.unwrap_err().to_string();
        assert!(said.contains(&format!("`{key}` is given a node of another graph")), "{said}");
        assert!(said.contains("`existing_node`"), "{said}");
    }
    assert_eq!(submitted.nodes().await.unwrap().len(), 1);
}
