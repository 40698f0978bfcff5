//! The metadata of runs and the options of graphs. Both are part of the request.

use std::time::{Duration, SystemTime};

use runledger::prelude::*;
use runledger::{ClientError, Graph, Need, TenantScope};
use runledger_tests::Fixture;
use runledger_tests::rows::{scalar, soon, worker};
use serde_json::json;

#[job]
async fn tells(n: u64) -> Result<u64> {
    Ok(n)
}

/// A node that runs in slices.
#[job]
async fn slices(n: u64, #[inject] context: &Context) -> Result<u64> {
    let done: u64 = context.last_progress().await?.unwrap_or(0);
    if done == n {
        return Ok(done);
    }
    context.progress(&(done + 1)).await?;
    context.continue_later(Duration::ZERO).await
}

fn graph() -> Graph<u64> {
    let mut graph = Graph::new("tells");
    let one = graph.call(tells(1));
    graph.result(one).idempotency_key("key").metadata("region", "eu")
}

#[tokio::test]
async fn run_metadata_is_returned_and_part_of_request() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let call =
        || tells(1).idempotency_key("1").metadata("region", "eu").metadata("order", json!({"lines": [1, 2]}));
    let run = call().enqueue(&db).await.unwrap();
    let info = run.info().await.unwrap();
    assert_eq!(info.metadata.keys().collect::<Vec<_>>(), ["order", "region"]);
    assert_eq!(
        (&info.metadata["region"], &info.metadata["order"]),
        (&json!("eu"), &json!({"lines": [1, 2]}))
    );
    let listed = db.runs(TenantScope::Global).await.unwrap();
    assert_eq!(listed.runs[0].metadata, info.metadata);

    assert_eq!(call().enqueue(&db).await.unwrap().id(), run.id());
    let other = call().metadata("region", "us").enqueue(&db).await.unwrap_err();
    assert!(other.to_string().contains("metadata"), "{other}");

    let blank = tells(1).metadata(" ", 1).enqueue(&db).await.unwrap_err();
    assert!(matches!(blank, ClientError::Name(_)), "{blank:?}");
    let large = tells(1).metadata("text", "x".repeat(20_000)).enqueue(&db).await.unwrap_err();
    assert!(large.to_string().contains("16384 is the limit"), "{large}");
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run").await, 1);
}

#[tokio::test]
async fn every_graph_option_is_part_of_request() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let first = graph().enqueue(&db).await.unwrap();
    assert_eq!(db.run(first.id()).info().await.unwrap().metadata["region"], json!("eu"));
    assert_eq!(graph().enqueue(&db).await.unwrap().id(), first.id());
    let mut node = Graph::new("tells");
    let one = node.call(tells(1));
    node.configure(one).metadata("of", "the node").resource("printer");
    let changed = [
        (graph().metadata("region", "us"), "metadata"),
        (graph().queue("other"), "queue"),
        (graph().priority(3), "priority"),
        (graph().deadline(Duration::from_secs(60)), "deadline"),
        (graph().active_key("one"), "active_key"),
        (node.result(one).idempotency_key("key").metadata("region", "eu"), "metadata"),
    ];
    for (graph, part) in changed {
        let refused = graph.enqueue(&db).await.unwrap_err();
        assert!(refused.to_string().contains(part), "{part}: {refused}");
    }
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run where graph is not null").await, 1);
}

#[tokio::test]
async fn node_options_dependencies_and_result_are_part_of_request() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let build = |change: usize| {
        let mut graph = Graph::new("nodes");
        let one = graph.call(tells(1).key("one"));
        let two = graph.call(tells(2).key("two"));
        let last = graph.then(tells, (one,));
        let mut node = graph.configure(last);
        match change {
            1 => node.tenant("acme"),
            2 => node.queue("other"),
            3 => node.priority(2),
            4 => node.max_attempts(2),
            5 => node.timeout(Duration::from_secs(1)),
            6 => node.delay(Duration::from_secs(1)),
            7 => node.start_at(SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000)),
            8 => node.resource("printer"),
            9 => node.metadata("of", "the node"),
            10 => node.deadline(Duration::from_secs(1)),
            11 => node.name("last"),
            _ => &mut node,
        };
        match change {
            12 => graph.after(last, two),
            13 => graph.after(last, Need::from(two).on_any_outcome()),
            14 => {
                graph.call(tells(3).key("three"));
                &mut graph
            }
            15 => {
                graph.gate::<()>("gate");
                &mut graph
            }
            _ => &mut graph,
        };
        graph.result(if change == 16 { two } else { last }).idempotency_key("key")
    };
    let first = build(0).enqueue(&db).await.unwrap();
    assert_eq!(build(0).enqueue(&db).await.unwrap().id(), first.id());
    for change in 1..=16 {
        let refused = build(change).enqueue(&db).await;
        assert!(matches!(refused, Err(ClientError::Conflict { .. })), "{change}: {refused:?}");
    }
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run where graph is not null").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn node_continues_as_new_and_dependent_waits_for_last_slice() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![tells, slices]).await;
    let mut graph = Graph::new("sliced");
    let sliced = graph.call(slices(5));
    let last = graph.then(tells, (sliced,));
    let graph = graph.result(last).enqueue(&db).await.unwrap();
    assert_eq!(soon(graph.result()).await.unwrap(), 5);
    let slices = scalar::<String>(&db, "select value::text from runledger.progress").await;
    assert_eq!(slices, "5", "as many as it has noted");
    worker.stop().await;
}
