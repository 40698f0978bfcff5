//! Map nodes of graphs.

use std::sync::atomic::{AtomicUsize, Ordering};

use runledger::prelude::*;
use runledger::{ClientError, Graph, GraphState, RunState, value};
use runledger_tests::Fixture;
use runledger_tests::rows::{scalar, soon, worker};

#[job]
async fn lists(n: u64) -> Result<Vec<u64>> {
    Ok((0..n).collect())
}

#[job]
async fn squares(n: u64) -> Result<u64> {
    // A number with more digits than a float can represent.
    Ok(u64::MAX - n * n)
}

#[job]
async fn adds_up(squares: Vec<u64>) -> Result<u64> {
    Ok(squares.into_iter().map(|square| u64::MAX - square).sum())
}

static REFUSED: AtomicUsize = AtomicUsize::new(0);

#[job(max_attempts = 1)]
async fn refuses_three(n: u64) -> Result<u64> {
    if n == 3 {
        REFUSED.fetch_add(1, Ordering::SeqCst);
        Err(Error::terminal("three is refused"))?;
    }
    Ok(n)
}

#[job]
async fn counts(items: Vec<u64>) -> Result<usize> {
    Ok(items.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn map_node_runs_job_for_each_item_of_its_list() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![lists, squares, adds_up]).await;
    let mut graph = Graph::new("mapped");
    let listed = graph.call(lists(20));
    let squared = graph.map(squares, listed);
    let sum = graph.then(adds_up, (squared,));
    let handle = graph.result(sum).tenant("acme").enqueue(&db).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), (0..20).map(|n| n * n).sum::<u64>());
    let runs = "select count(*) from runledger.run where job = 'squares' and tenant = 'acme' and depth = 2";
    assert_eq!(scalar::<i64>(&db, runs).await, 20);
    let names: Vec<String> = handle.nodes().await.unwrap().into_iter().map(|node| node.name).collect();
    assert_eq!(names, ["adds_up", "lists", "squares"]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn map_over_literal_or_empty_list_returns_outputs_in_order() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![lists, squares, counts, refuses_three]).await;
    let mut graph = Graph::new("orders");
    let some = graph.map(refuses_three, value(vec![5_u64, 1, 4]));
    let handle = graph.result(some).enqueue(&db).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), [5, 1, 4]);
    let mut graph = Graph::new("empty");
    let nothing = graph.call(lists(0));
    let none = graph.map(refuses_three, nothing);
    let count = graph.then(counts, (none,));
    let handle = graph.result(count).enqueue(&db).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_item_fails_map_node_and_cancels_success_dependents() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![lists, refuses_three, counts]).await;
    let mut graph = Graph::new("refused");
    let listed = graph.call(lists(6));
    let mapped = graph.map(refuses_three, listed);
    let count = graph.then(counts, (mapped,));
    let handle = graph.result(count).enqueue(&db).await.unwrap();
    let ClientError::RunFailed { failure, .. } = soon(handle.result()).await.unwrap_err() else { panic!() };
    assert!(failure.to_string().contains("`refuses_three`"), "{failure}");
    assert_eq!(
        (handle.graph_state().await.unwrap(), REFUSED.load(Ordering::SeqCst)),
        (GraphState::Failed, 1)
    );
    let nodes = handle.nodes().await.unwrap();
    let of = |name: &str| nodes.iter().find(|node| node.name == name).unwrap();
    let why = of("refuses_three").error.as_ref().map(ToString::to_string).unwrap();
    assert!(why.contains("three is refused"), "{why}");
    assert_eq!(of("counts").state, RunState::Cancelled);
    worker.stop().await;
}
