//! `Graph::feed` refuses values that the job would not receive.

use runledger::prelude::*;
use runledger::{AnyCall, Graph, value};
use runledger_tests::Fixture;
use runledger_tests::rows::{scalar, soon, worker};
use serde_json::json;

#[job]
async fn one() -> Result<u64> {
    Ok(1)
}

#[job]
async fn counts_parts(parts: Vec<u64>) -> Result<u64> {
    Ok(parts.iter().sum())
}

/// Feeds `parameters` to a node with `arguments`, and returns the error.
async fn refused(db: &Db, arguments: serde_json::Value, parameters: &[&str]) -> String {
    let mut graph = Graph::new("fed");
    let source = graph.call(one());
    let node = graph.node("counts_parts", AnyCall::by_name("counts_parts", &arguments));
    for parameter in parameters {
        graph.feed(node, *parameter, source);
    }
    graph.enqueue(db).await.map(drop).expect_err(&format!("{parameters:?}")).to_string()
}

#[tokio::test]
async fn invalid_duplicate_or_conflicting_fed_parameter_is_refused() {
    let Fixture { db, database: _database } = Fixture::new().await;
    for malformed in ["", "parts[]", "parts[x]", "parts[00]", "parts[-1]", "parts[0", "parts[0][1]"] {
        let said = refused(&db, json!({}), &["parts[0]", malformed]).await;
        let part = format!(
            "`counts_parts` is given the parameter `{malformed}`, and a parameter is written as its name"
        );
        assert!(said.contains(&part), "{said}");
    }
    for condition in ["?", "?one"] {
        let said = refused(&db, json!({}), &["parts[0]", condition]).await;
        let part =
            format!("`counts_parts` is given the parameter `{condition}`, and no parameter begins with `?`");
        assert!(said.contains(&part), "{said}");
    }
    let said = refused(&db, json!({}), &["parts", "parts[0]"]).await;
    assert!(said.contains("the parameter `parts`, and also items of it, such as `parts[0]`"), "{said}");
    let said = refused(&db, json!({}), &["parts[0]", "parts[0]"]).await;
    assert!(said.contains("the parameter `parts[0]`, and more than once"), "{said}");
    for parameter in ["parts", "parts[0]"] {
        let said = refused(&db, json!({"parts": [1]}), &[parameter]).await;
        let part = format!("the parameter `{parameter}`, and its call has an argument `parts` of its own");
        assert!(said.contains(&part), "{said}");
    }
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run").await, 0);
}

#[tokio::test]
async fn value_fed_beside_typed_argument_is_refused() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut graph = Graph::new("fed");
    let source = graph.call(one());
    let node = graph.then(counts_parts, (value(vec![1]),));
    graph.feed(node, "parts", source);
    let said = graph.enqueue(&db).await.map(drop).unwrap_err().to_string();
    assert!(
        said.contains("the parameter `parts`, and its call has an argument `parts` of its own"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn list_items_are_fed_by_index() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![one, counts_parts]).await;
    let mut graph = Graph::new("fed");
    let source = graph.call(one());
    let node = graph.node("counts_parts", AnyCall::by_name("counts_parts", &json!({})));
    graph.feed(node, "parts[1]", source).feed(node, "parts[10]", source);
    let handle = graph.result(node).enqueue(&db).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), json!(2));
    worker.stop().await;
}
