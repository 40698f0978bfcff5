//! Cancelling graphs with many nodes.

use runledger::prelude::*;
use runledger::{Cancelled, Graph, GraphHandle, RunState};
use runledger_tests::check::graphs;
use runledger_tests::proxy::{Fault, Proxy};
use runledger_tests::rows::{scalar, soon, until, worker};
use runledger_tests::{Fixture, eventually};

use crate::graph_jobs::{add, node, sum, tells};

const LEFT: &str = "select (select count(*) from runledger.graph_counter) + (select count(*) from runledger.waiting)
    + (select count(*) from runledger.ready) + (select count(*) from runledger.lease) + (select count(*) from runledger.cancel)";

const NOT_CANCELLED: &str = "select count(*) from runledger.run_state where node is not null and (state <> 'cancelled' or attempt <> 0)";

#[job(max_attempts = 1)]
async fn holds_on() -> Result<u64> {
    std::future::pending().await
}

/// A graph with queued nodes, an open gate, nodes that need the gate's success, and nodes that
/// accept any outcome.
async fn submitted(db: &Db, n_nodes: u64) -> GraphHandle<()> {
    let mut graph = Graph::new("wide");
    let gate = graph.gate::<u64>("gate");
    for n in 0..n_nodes / 4 {
        let due = graph.call(add(n, 1));
        let again = graph.then(add, (due, gate));
        let last = graph.then(sum, (vec![due, again],));
        graph.then(tells, (last.on_any_outcome(),));
    }
    graph.enqueue(db).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn cancel_of_ten_thousand_queued_nodes_takes_few_statements() {
    let Fixture { db, database } = Fixture::new().await;
    let mut graph = Graph::new("queued");
    for n in 0..10_000 {
        graph.call(add(n, 1));
    }
    let id = graph.enqueue(&db).await.unwrap().id();
    let proxy = Proxy::start(database.url()).await.unwrap();
    let other = Db::connect(proxy.url()).await.unwrap();
    proxy.forget();
    let cancelled = other.graph::<()>(id).cancel("enough").await.unwrap();
    assert_eq!(cancelled, Cancelled::Now);
    assert_eq!(scalar::<i64>(&db, NOT_CANCELLED).await, 0);
    assert_eq!(
        proxy.count("-- cancel_nodes"),
        15,
        "16, twice as many each time, and then a thousand at a time"
    );
    assert!(proxy.statements().len() < 150, "{} statements", proxy.statements().len());
    // The worker finds no live node in the graph.
    let worker = worker(&db, jobs![add]).await;
    eventually(async || scalar::<i64>(&db, LEFT).await, |n_left| *n_left == 0).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_of_interdependent_nodes_ends_each_once() {
    let Fixture { db, database } = Fixture::new().await;
    let n_nodes = 3_000;
    let handle = submitted(&db, n_nodes).await;
    let proxy = Proxy::start(database.url()).await.unwrap();
    let other = Db::connect(proxy.url()).await.unwrap();
    proxy.forget();
    other.graph::<()>(handle.id()).cancel("enough").await.unwrap();
    assert_eq!(scalar::<i64>(&db, NOT_CANCELLED).await, 0);
    let n_ended = scalar::<i64>(&db, "select count(*) from runledger.outcome").await;
    assert_eq!(n_ended.unsigned_abs(), n_nodes + 2, "the gate and the graph too");
    assert!(proxy.statements().len() < 150, "{} statements", proxy.statements().len());
    let worker = worker(&db, jobs![add, sum, tells]).await;
    eventually(async || scalar::<i64>(&db, LEFT).await, |n_left| *n_left == 0).await;
    let mut connection = database.connect().await.unwrap();
    assert_eq!(graphs::wrong(&mut connection, 0).await.unwrap(), Vec::<String>::new());
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_reaches_running_node_beside_queued_ones() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![holds_on]).await;
    let mut graph = Graph::new("held");
    let held = graph.call(holds_on());
    graph.then(add, (held, held));
    // No worker serves this job.
    graph.call(add(1, 1).key("queued"));
    let handle = graph.enqueue(&db).await.unwrap();
    until(&db, node(&handle, "holds_on").await.run_id, |info| info.state == RunState::Running).await;
    handle.cancel("enough").await.unwrap();
    for name in ["holds_on", "add", "add[queued]"] {
        let run_id = node(&handle, name).await.run_id;
        until(&db, run_id, |info| info.state == RunState::Cancelled).await;
    }
    eventually(async || scalar::<i64>(&db, LEFT).await, |n_left| *n_left == 0).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_of_killed_caller_is_finished_by_worker() {
    let Fixture { db, database } = Fixture::new().await;
    let handle = submitted(&db, 400).await;
    let proxy = Proxy::start(database.url()).await.unwrap();
    let other = Db::connect(proxy.url()).await.unwrap();
    proxy.arm("-- cancel_below:", Fault::Strand);
    let (there, id) = (other.clone(), handle.id());
    let cancel = tokio::spawn(async move { there.graph::<()>(id).cancel("enough").await });
    until(&db, handle.id(), |info| info.state == RunState::Cancelled).await;
    assert_eq!(node(&handle, "gate").await.state, RunState::Waiting);
    cancel.abort();
    // The worker serves no job of the nodes, so it can only cancel them.
    let worker = worker(&db, jobs![holds_on]).await;
    soon(eventually(async || scalar::<i64>(&db, LEFT).await, |n_left| *n_left == 0)).await;
    assert_eq!(scalar::<i64>(&db, NOT_CANCELLED).await, 0);
    worker.stop().await;
}
