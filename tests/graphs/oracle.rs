//! Behaviours 27 and 28 for graphs of any shape. Random graphs have nodes that return, fail, retry,
//! take time and are taken from their workers. The shape alone determines the expected end. Half of
//! the graphs are submitted in parts while they run.

use std::collections::BTreeSet;
use std::time::Duration;

use runledger::prelude::*;
use runledger::{ClientError, Graph, GraphHandle, Outcome, Payload};
use runledger_tests::Fixture;
use runledger_tests::check::graphs;
use runledger_tests::check::shapes::{
    NAME, Shape, check_adds, declare, expected, graph_of, judge, misended, shapes,
};
use runledger_tests::rows::take_some_away;
use runledger_tests::seed::seed;

use runledger_tests::rows::{LONG, scalar, worker};

/// Submits the first nodes of a shape, then adds the others a few at a time while the graph runs.
async fn submit_in_parts(db: &Db, shapes: &[Shape], seed: u64) -> GraphHandle<()> {
    let mut dice = fastrand::Rng::with_seed(!seed);
    let mut from = 1 + dice.usize(..shapes.len());
    let mut graph = Graph::new(NAME);
    declare(&mut graph, shapes, 0..from);
    graph.gate::<()>("window");
    let handle = graph.enqueue(db).await.unwrap();
    while from < shapes.len() {
        let to = from + 1 + dice.usize(..shapes.len() - from);
        let more = || {
            let mut more = Graph::new(NAME);
            declare(&mut more, shapes, from..to);
            more
        };
        assert!(handle.extend_from("window").append(&from.to_string(), more()).await.unwrap().created);
        assert!(!handle.extend_from("window").append(&from.to_string(), more()).await.unwrap().created);
        from = to;
    }
    handle.gate("window").complete(&()).await.unwrap();
    handle
}

async fn judge_whole(handle: &GraphHandle<serde_json::Value>, shapes: &[Shape]) -> Vec<String> {
    let _ = ended(handle).await;
    judge(handle, shapes).await.unwrap()
}

/// A graph without a result completes if all nodes without dependents complete.
async fn judge_parts(handle: &GraphHandle<()>, shapes: &[Shape]) -> Vec<String> {
    let result = ended(handle).await;
    let needed: BTreeSet<usize> =
        shapes.iter().flat_map(|shape| shape.needs.iter().map(|(other, ..)| *other)).collect();
    let mut failed = expected(shapes)
        .into_iter()
        .enumerate()
        .filter(|(place, end)| !needed.contains(place) && !matches!(end, Outcome::Completed(_)));
    let wanted = failed.next().map_or(Outcome::Completed(0), |(_, end)| end);
    let mut wrong = misended(handle, shapes, &wanted).await.unwrap();
    if result.is_ok() != matches!(wanted, Outcome::Completed(_)) {
        wrong.push(format!("the graph ended with {result:?}, and {wanted:?} was to decide"));
    }
    wrong
}

async fn ended<T: Payload>(handle: &GraphHandle<T>) -> Result<T, ClientError> {
    tokio::time::timeout(LONG, handle.result()).await.expect("a graph should have ended long ago")
}

/// Takes nodes from their workers, and returns how many. Tries up to 500 times, until workers have
/// some.
async fn take_from_workers(db: &Db) -> u64 {
    for _ in 0..500 {
        let n_taken = take_some_away(db).await;
        if n_taken > 0 {
            return n_taken;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    0
}

/// Checks `n_graphs` graphs, `at_once` at a time. Nodes are taken from their workers now and then,
/// and half of the graphs are submitted in parts.
async fn hold(n_graphs: u64, at_once: u64) {
    let fixture = Fixture::new().await;
    let mut workers = Vec::new();
    for _ in 0..3 {
        workers.push(worker(&Db::connect(fixture.database.url()).await.unwrap(), jobs![check_adds]).await);
    }
    let db = &fixture.db;
    let first = seed() >> 32;
    let mut connection = fixture.database.connect().await.unwrap();
    let mut n_lost = 0;
    for seeds in (first..first + n_graphs).collect::<Vec<_>>().chunks(usize::try_from(at_once).unwrap()) {
        let (mut whole, mut parts) = (Vec::new(), Vec::new());
        for seed in seeds {
            let shapes = shapes(*seed);
            if seed % 2 == 0 {
                whole.push((*seed, graph_of(&shapes).enqueue(db).await.unwrap(), shapes));
            } else {
                parts.push(async move { (*seed, submit_in_parts(db, &shapes, *seed).await, shapes) });
            }
        }
        let (parts, n_taken) =
            futures::future::join(futures::future::join_all(parts), take_from_workers(db)).await;
        n_lost += n_taken;
        let seen = graphs::wrong(&mut connection, 0).await.unwrap();
        assert!(seen.is_empty(), "while they run, of the seeds {seeds:?}: {seen:?}");
        for (seed, handle, shapes) in whole {
            let wrong = judge_whole(&handle, &shapes).await;
            assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
        }
        for (seed, handle, shapes) in parts {
            let wrong = judge_parts(&handle, &shapes).await;
            assert!(wrong.is_empty(), "seed {seed}, in parts: {wrong:?}");
        }
    }
    let seen = graphs::wrong(&mut connection, 0).await.unwrap();
    assert!(seen.is_empty(), "{seen:?}");
    assert!(n_lost > 0, "no node was taken from its worker");
    let deadlocks: i64 =
        scalar(db, "select deadlocks from pg_stat_database where datname = current_database()").await;
    assert_eq!(deadlocks, 0);
    for worker in workers {
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_random_graphs_end_as_their_shape_predicts() {
    hold(20, 20).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo random`, or `cargo exhaustive` with the others"]
async fn two_thousand_random_graphs_end_as_their_shape_predicts() {
    hold(2_000, 50).await;
}
