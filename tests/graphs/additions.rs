//! Behaviour 32: nodes that are added to a live graph.

use std::sync::atomic::{AtomicUsize, Ordering};

use runledger::prelude::*;
use runledger::{ClientError, Graph, GraphState, NodeInfo, RunState, value};
use runledger_tests::Fixture;
use runledger_tests::check::graphs;
use runledger_tests::rows::{execute, scalar, soon, until, worker};
use tokio::sync::Semaphore;

use crate::graph_jobs::{add, node, refuses, tells};

#[job]
async fn length(text: &str) -> Result<u64> {
    Ok(text.len() as u64)
}

/// Adds a node to its own graph for each text. The new nodes depend on this one.
#[job]
async fn finds(texts: Vec<String>, #[inject] db: &Db, #[inject] context: &Context) -> Result<u64> {
    let graph = db.graph::<()>(context.graph_id().unwrap_or_default());
    let mut more = Graph::new("found");
    let found = more.existing_node::<u64>("finds");
    for text in &texts {
        let length = more.call(length(text).key(text));
        more.then(add, (found, length));
    }
    graph.extend_from("finds").append("all", more).await?;
    Ok(texts.len() as u64)
}

fn all() -> [&'static runledger::Definition; 4] {
    jobs![length, add, refuses, tells]
}

async fn output(db: &Db, node: &NodeInfo) -> String {
    until(db, node.run_id, |info| info.state.is_terminal()).await;
    scalar(db, &format!("select output::text from runledger.outcome where run_id = '{}'", node.run_id)).await
}

fn batch(text: &str) -> Graph {
    let mut more = Graph::new("reads");
    let first = more.existing_node::<u64>("length");
    let more_files = more.existing_node::<u64>("more files");
    let length = more.call(length(text).key(text));
    let sum = more.then(add, (first, length));
    let after_all = more.then(add, (sum, more_files));
    more.configure(after_all).name(format!("after all, {text}"));
    more
}

#[tokio::test(flavor = "multi_thread")]
async fn window_accepts_addition_once_per_key_until_it_closes() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, all()).await;
    let mut graph = Graph::new("reads");
    graph.call(length("first"));
    graph.gate::<u64>("more files");
    let handle = graph.enqueue(&db).await.unwrap();
    until(&db, node(&handle, "length").await.run_id, |info| info.state == RunState::Completed).await;

    assert!(handle.extend_from("more files").append("2", batch("second")).await.unwrap().created);
    // The node is ready from the start: its dependencies have ended.
    assert_eq!(output(&db, &node(&handle, "add").await).await, "11");
    assert_eq!(node(&handle, "after all, second").await.n_live_dependencies, 1);
    assert!(!handle.extend_from("more files").append("2", batch("second")).await.unwrap().created);
    let error = handle.extend_from("more files").append("2", batch("third")).await.unwrap_err();
    let ClientError::AdditionConflict { difference, .. } = &error else { panic!("{error}") };
    assert!(difference.contains("nodes"), "{error}");
    assert_eq!(handle.nodes().await.unwrap().len(), 5, "nothing of it is written");

    handle.gate("more files").complete(&100_u64).await.unwrap();
    assert_eq!(output(&db, &node(&handle, "after all, second").await).await, "111");
    soon(handle.result()).await.unwrap();
    assert_eq!(handle.graph_state().await.unwrap(), GraphState::Completed);
    let error = handle.extend_from("more files").append("4", batch("fourth")).await.unwrap_err();
    assert!(error.to_string().contains("node `more files` of graph"), "{error}");
    assert!(error.to_string().contains("cannot be extended, because it is completed"), "{error}");
    assert!(!handle.extend_from("more files").append("2", batch("second")).await.unwrap().created);
    assert!(matches!(error, ClientError::ExtensionClosed { .. }), "{error:?}");
    let left: i64 = scalar(&db, "select count(*) from runledger.graph_counter").await;
    assert_eq!(left, 0, "what was counted is forgotten");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn added_node_starts_when_ready_or_is_cancelled_with_reason() {
    let Fixture { db, database } = Fixture::new().await;
    let worker = worker(&db, all()).await;
    let mut graph = Graph::new("reads");
    graph.call(refuses(7));
    let window = graph.gate::<()>("window");
    let handle = graph.result(window).enqueue(&db).await.unwrap();
    until(&db, node(&handle, "refuses").await.run_id, |info| info.state == RunState::Failed).await;

    let mut more = Graph::new("reads");
    let refused = more.existing_node::<u64>("refuses");
    let hopeless = more.then(add, (refused, value(1)));
    more.then(add, (hopeless, value(1)));
    let told = more.then(tells, (refused.on_any_outcome(),));
    let too = more.then(tells, (hopeless.on_any_outcome(),));
    more.after(too, told);
    let free = more.call(length("free"));
    more.configure(free).priority(3);
    assert!(handle.extend_from("window").append("1", more).await.unwrap().created);
    for name in ["add", "add#2"] {
        let node = node(&handle, name).await;
        assert_eq!(node.state, RunState::Cancelled);
        let why = node.error.unwrap().to_string();
        assert!(why.contains("the node `refuses` failed, and this one needs its success"), "{why}");
    }
    assert!(output(&db, &node(&handle, "tells").await).await.contains("7 is refused"));
    assert!(output(&db, &node(&handle, "tells#2").await).await.contains("cancelled: "));
    assert_eq!(output(&db, &node(&handle, "length").await).await, "4");
    let mut connection = database.connect().await.unwrap();
    assert_eq!(graphs::wrong(&mut connection, 0).await.unwrap(), Vec::<String>::new());
    handle.gate("window").complete(&()).await.unwrap();
    soon(handle.result()).await.unwrap();
    assert_eq!(handle.graph_state().await.unwrap(), GraphState::CompletedWithErrors);
    worker.stop().await;
}

#[tokio::test]
async fn invalid_addition_is_refused_with_every_error_and_writes_nothing() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut graph = Graph::new("reads");
    graph.call(length("first"));
    graph.gate::<u64>("window");
    let handle = graph.enqueue(&db).await.unwrap();
    let rows = async || {
        let count = "select (select count(*) from runledger.run) + (select count(*) from runledger.edge) + (select count(*) from runledger.addition)";
        scalar::<i64>(&db, count).await
    };
    let before = rows().await;

    let mut more = Graph::new("raeds").tenant("somebody").priority(3);
    let there = more.existing_node::<u64>("length");
    more.configure(there).max_attempts(2).deadline(std::time::Duration::from_secs(1));
    let own = more.call(length("own").key("own"));
    more.after(there, own);
    let error = handle.extend_from("window").append("1", more).await.unwrap_err().to_string();
    for part in [
        "it has a tenant, which only a whole graph has",
        "it has a priority, which only a whole graph has",
        "`length` is there already, so that it cannot be given `max_attempts` any more",
        "`length` is there already, so that it cannot be given `deadline` any more",
        "`length` is there already, so that it cannot be given another node to wait for any more",
    ] {
        assert!(error.contains(part), "{part:?} is not said in:\n{error}");
    }

    let mut more = Graph::new("raeds");
    let absent = more.existing_node::<u64>("lenght");
    more.then(add, (absent, value(1)));
    more.call(length("another"));
    let error = handle.extend_from("window").append("1", more).await.unwrap_err().to_string();
    for part in [
        "it is an addition to `raeds`, and the graph is called `reads`",
        "`lenght` is said to be there already, and the graph has no such node; did you mean `length`?",
        "the graph has a node `length` already",
    ] {
        assert!(error.contains(part), "{part:?} is not said in:\n{error}");
    }

    let mut none = Graph::new("reads");
    none.existing_node::<u64>("length");
    let error = handle.extend_from("window").append("1", none).await.unwrap_err().to_string();
    assert!(error.contains("it has no nodes"), "{error}");
    let error = handle.extend_from("windwo").append("1", batch("more")).await.unwrap_err().to_string();
    assert!(error.contains("has no node `windwo`; did you mean `window`?"), "{error}");
    let error = handle.extend_from("window").append(" ", batch("more")).await.unwrap_err().to_string();
    assert!(error.contains("key of the addition"), "{error}");
    let single = length("alone").enqueue(&db).await.unwrap();
    let error =
        db.graph::<()>(single.id()).extend_from("window").append("1", batch("more")).await.unwrap_err();
    assert!(matches!(error, ClientError::NotAGraph { .. }), "{error}");
    let mut new = Graph::new("reads");
    new.existing_node::<u64>("length");
    let error = new.enqueue(&db).await.unwrap_err().to_string();
    assert!(error.contains("`length` is said to be there already, and the graph is new"), "{error}");
    assert_eq!(rows().await, before + 1, "the single run alone");
    handle.cancel("over").await.unwrap();
    let error = handle.extend_from("window").append("1", batch("more")).await.unwrap_err();
    assert!(error.to_string().contains("cannot be extended, because it is cancelled"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn running_node_extends_own_graph_with_dependents_of_its_output() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let app = App::new(db.clone()).provide(db.clone()).with(jobs![finds, length, add]);
    let worker = app.start().await.unwrap();
    let mut graph = Graph::new("found");
    graph.call(finds(vec!["a".to_owned(), "bb".to_owned(), "ccc".to_owned()]));
    let handle = graph.enqueue(&db).await.unwrap();
    soon(handle.result()).await.unwrap();
    let sums = "select coalesce(sum(output::text::bigint), 0)::bigint from runledger.outcome join runledger.run using (run_id) where job = 'add'";
    assert_eq!(scalar::<i64>(&db, sums).await, 3 * 3 + 1 + 2 + 3);
    assert_eq!(handle.nodes().await.unwrap().len(), 7);
    worker.stop().await;
}

/// Additions whose dependencies end at the same moment: none is lost or counted twice, and no two
/// transactions wait for each other.
#[tokio::test(flavor = "multi_thread")]
async fn addition_racing_with_ending_dependencies_counts_each_once() {
    let Fixture { db, database } = Fixture::new().await;
    let mut workers = Vec::new();
    for _ in 0..2 {
        workers.push(worker(&Db::connect(database.url()).await.unwrap(), all()).await);
    }
    let one = async |n: u64| {
        let mut graph = Graph::new("chain");
        let first = graph.call(length("first"));
        let second = graph.then(add, (first, value(n)));
        let doomed = graph.then(refuses, (second,));
        graph.then(add, (doomed, value(1)));
        let window = graph.gate::<()>("window");
        let handle = graph.result(window).enqueue(&db).await.unwrap();
        for at in 0..8 {
            let mut more = Graph::new("chain");
            let needed = ["length", "add", "refuses", "add#2"][at % 4];
            let existing = more.existing_node::<u64>(needed);
            let sum = more.then(add, (existing, value(1)));
            more.configure(sum).name(format!("sum {at}"));
            let told = more.then(tells, (sum.on_any_outcome(),));
            more.configure(told).name(format!("told {at}"));
            assert!(handle.extend_from("window").append(&at.to_string(), more).await.unwrap().created);
        }
        handle.gate("window").complete(&()).await.unwrap();
        soon(handle.result()).await.unwrap();
        let nodes = handle.nodes().await.unwrap();
        for node in nodes {
            let hopeless = ["refuses", "add#2", "sum 2", "sum 3", "sum 6", "sum 7"].contains(&&*node.name);
            assert_eq!(node.state == RunState::Completed, !hopeless, "{node:?}");
            assert!(node.attempt <= 1, "{node:?}");
        }
    };
    futures::future::join_all((0..12).map(one)).await;
    let mut connection = database.connect().await.unwrap();
    assert_eq!(graphs::wrong(&mut connection, 0).await.unwrap(), Vec::<String>::new());
    let left: i64 = scalar(&db, "select count(*) from runledger.graph_counter").await;
    assert_eq!(left, 0, "what was counted is forgotten");
    let deadlocks: i64 =
        scalar(&db, "select deadlocks from pg_stat_database where datname = current_database()").await;
    assert_eq!(deadlocks, 0);
    for worker in workers {
        worker.stop().await;
    }
}

static BODIES: AtomicUsize = AtomicUsize::new(0);
static BEGUN: Semaphore = Semaphore::const_new(0);
static GO_ON: Semaphore = Semaphore::const_new(0);

/// A body whose snapshot is older than the nodes added while it runs.
#[job]
async fn looks_long(#[inject] tx: &mut Tx) -> Result<u64> {
    sqlx::query("set transaction isolation level serializable").execute(&mut **tx).await?;
    let n: i64 = sqlx::query_scalar("select count(*) from looked_at").fetch_one(&mut **tx).await?;
    if BODIES.fetch_add(1, Ordering::Relaxed) == 0 {
        BEGUN.add_permits(1);
        GO_ON.acquire().await?.forget();
    }
    Ok(u64::try_from(n).unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn transactional_node_with_older_snapshot_does_not_miss_addition() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, "create table looked_at (n int)").await;
    let worker = worker(&db, jobs![looks_long, add]).await;
    let mut graph = Graph::new("long");
    graph.call(looks_long());
    graph.gate::<()>("window");
    let handle = graph.enqueue(&db).await.unwrap();
    BEGUN.acquire().await.unwrap().forget();
    let mut more = Graph::new("long");
    let looked = more.existing_node::<u64>("looks_long");
    more.then(add, (looked, value(1)));
    handle.extend_from("window").append("1", more).await.unwrap();
    GO_ON.add_permits(1);
    assert_eq!(output(&db, &node(&handle, "add").await).await, "1");
    assert_eq!(
        BODIES.load(Ordering::Relaxed),
        2,
        "the body ran once more, in a transaction that sees the addition"
    );
    handle.gate("window").complete(&()).await.unwrap();
    soon(handle.result()).await.unwrap();
    worker.stop().await;
}
