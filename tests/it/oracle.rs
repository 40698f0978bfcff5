//! Behaviours 27 and 28 for graphs of any shape: random graphs of nodes that give, fail, try again, take a while and are taken from their workers, held against what
//! their shape alone says. Half of them are submitted in parts while they run.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use runledger::prelude::*;
use runledger::{AnyCall, ClientError, Graph, GraphHandle, GraphState, Need, Node, Outcome, RunState};
use runledger_tests::Fixture;
use runledger_tests::check::graphs;
use serde_json::json;

use crate::combinators::take_some_away;
use crate::rows::{LONG, random, scalar, worker};

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum Act {
    Gives,
    Fails,
    TriesAgain,
    TakesAWhile,
}

/// What the end of another counts for, where it gave nothing.
const FAILED: u64 = 1_000_003;
const CANCELLED: u64 = 7_000_001;

/// Gives its own number and what it was given.
#[job(max_attempts = 3, backoff = "1ms..1ms")]
async fn adds(
    own: u64,
    act: Act,
    #[default] parts: Vec<u64>,
    #[default] ends: Vec<Outcome<u64>>,
    #[inject] context: &Context,
) -> Result<u64> {
    match act {
        Act::Fails => return Err(Error::terminal("it was to fail")),
        Act::TriesAgain if context.attempt() == 1 => return Err("the first attempt fails".into()),
        Act::TakesAWhile => tokio::time::sleep(Duration::from_micros(random(20_000))).await,
        Act::Gives | Act::TriesAgain => {}
    }
    let end = |end: &Outcome<u64>| match end {
        Outcome::Completed(value) => *value,
        Outcome::Failed(_) => FAILED,
        Outcome::Cancelled(_) => CANCELLED,
    };
    Ok((own + parts.iter().sum::<u64>() + ends.iter().map(end).sum::<u64>()) % 1_000_000_007)
}

/// One node of a shape: what it does, and what it needs: which node, whether any end will do, whether it is given what that gave.
struct Shape {
    act: Act,
    needs: Vec<(usize, bool, bool)>,
}

/// A shape of 2 to 50 nodes, of a seed: sparse ones and dense ones, deep and wide.
fn shapes(seed: u64) -> Vec<Shape> {
    let mut dice = Dice(seed);
    let n_nodes = 2 + dice.below(49);
    let (density, reach) = (1 + dice.below(5), 1 + dice.below(n_nodes));
    (0..n_nodes)
        .map(|place| {
            let act = match dice.below(12) {
                0 => Act::Fails,
                1 => Act::TriesAgain,
                2 | 3 => Act::TakesAWhile,
                _ => Act::Gives,
            };
            let mut needs: BTreeMap<usize, (bool, bool)> = BTreeMap::new();
            for _ in 0..dice.below(density + 1) {
                if place > 0 {
                    let other = place - 1 - dice.below(reach.min(place));
                    needs.insert(other, (dice.below(3) == 0, dice.below(2) == 0));
                }
            }
            let needs = needs.into_iter().map(|(other, (on_terminal, fed))| (other, on_terminal, fed));
            Shape { act, needs: needs.collect() }
        })
        .collect()
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % n as u64).unwrap()
    }
}

fn name_of(place: usize) -> String {
    format!("n{place:02}")
}

/// How each node must end.
fn expected(shapes: &[Shape]) -> Vec<Outcome<u64>> {
    let mut ends: Vec<Outcome<u64>> = Vec::new();
    let failure = || runledger::Failure::new(runledger::FailureKind::Error, "");
    for (own, shape) in shapes.iter().enumerate() {
        let is_hopeless = shape
            .needs
            .iter()
            .any(|(other, on_terminal, _)| !on_terminal && !matches!(ends[*other], Outcome::Completed(_)));
        let given = shape.needs.iter().filter(|(_, _, fed)| *fed).map(|(other, _, _)| match &ends[*other] {
            Outcome::Completed(value) => *value,
            Outcome::Failed(_) => FAILED,
            Outcome::Cancelled(_) => CANCELLED,
        });
        let sum = (own as u64 + given.sum::<u64>()) % 1_000_000_007;
        ends.push(match shape.act {
            _ if is_hopeless => Outcome::Cancelled(failure()),
            Act::Fails => Outcome::Failed(failure()),
            _ => Outcome::Completed(sum),
        });
    }
    ends
}

/// Declares some nodes of a shape. Of those that are not among them it says that they are there.
fn declare(graph: &mut Graph, shapes: &[Shape], places: Range<usize>) -> Option<Node<serde_json::Value>> {
    let mut last = None;
    let mut there = BTreeSet::new();
    for place in places.clone() {
        let shape = &shapes[place];
        let call = AnyCall::by_name("adds", &json!({"own": place, "act": shape.act}));
        let node = graph.node(name_of(place), call);
        let (mut n_parts, mut n_ends) = (0, 0);
        for (other, on_terminal, fed) in &shape.needs {
            if *other < places.start && there.insert(*other) {
                graph.existing::<u64>(name_of(*other));
            }
            let need = Need::from(name_of(*other));
            let need = if *on_terminal { need.on_terminal() } else { need };
            match (fed, on_terminal) {
                (false, _) => graph.after(node, need),
                (true, false) => {
                    n_parts += 1;
                    graph.feed(node, format!("parts[{n_parts}]"), need)
                }
                (true, true) => {
                    n_ends += 1;
                    graph.feed(node, format!("ends[{n_ends}]"), need)
                }
            };
        }
        last = Some(node);
    }
    last
}

/// The graph of a shape, with its last node as the result.
async fn submit_whole(db: &Db, shapes: &[Shape]) -> GraphHandle<serde_json::Value> {
    let mut graph = Graph::new("oracle");
    let last = declare(&mut graph, shapes, 0..shapes.len());
    graph.result(last.unwrap()).enqueue(db).await.unwrap()
}

/// The graph of a shape of which all but the first nodes are added while it runs, a few at a time.
async fn submit_in_parts(db: &Db, shapes: &[Shape], seed: u64) -> GraphHandle<()> {
    let mut dice = Dice(!seed);
    let mut from = 1 + dice.below(shapes.len());
    let mut graph = Graph::new("oracle");
    declare(&mut graph, shapes, 0..from);
    graph.gate::<()>("window");
    let handle = graph.enqueue(db).await.unwrap();
    while from < shapes.len() {
        let to = from + 1 + dice.below(shapes.len() - from);
        let more = || {
            let mut more = Graph::new("oracle");
            declare(&mut more, shapes, from..to);
            more
        };
        assert!(handle.window("window").append(&from.to_string(), more()).await.unwrap().created);
        assert!(!handle.window("window").append(&from.to_string(), more()).await.unwrap().created);
        from = to;
    }
    handle.gate("window").complete(&()).await.unwrap();
    handle
}

/// What differs of the nodes from what the shape says, and how the graph was to end.
async fn judge<T: runledger::Payload>(
    handle: &GraphHandle<T>,
    shapes: &[Shape],
    wanted: &Outcome<u64>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let nodes = handle.nodes().await.unwrap();
    for ((node, end), shape) in nodes.iter().zip(&expected(shapes)).zip(shapes) {
        let (state, attempts) = match (end, shape.act) {
            (Outcome::Cancelled(_), _) => (RunState::Cancelled, 0),
            (Outcome::Failed(_), _) => (RunState::Failed, 1),
            (Outcome::Completed(_), Act::TriesAgain) => (RunState::Completed, 2),
            (Outcome::Completed(_), _) => (RunState::Completed, 1),
        };
        if (node.state, node.attempt) != (state, attempts) {
            wrong.push(format!(
                "{} is {} in attempt {}, not {state} in {attempts}",
                node.name, node.state, node.attempt
            ));
        }
    }
    let is_whole = nodes.iter().all(|node| node.state == RunState::Completed);
    let wanted = match wanted {
        Outcome::Completed(_) if is_whole => GraphState::Completed,
        Outcome::Completed(_) => GraphState::CompletedWithErrors,
        Outcome::Failed(_) | Outcome::Cancelled(_) => GraphState::Failed,
    };
    let state = handle.graph_state().await.unwrap();
    if state != wanted {
        wrong.push(format!("the graph is {state:?}, and was to be {wanted:?}"));
    }
    wrong
}

async fn judge_whole(handle: &GraphHandle<serde_json::Value>, shapes: &[Shape]) -> Vec<String> {
    let result = ended(handle).await;
    let wanted = expected(shapes).pop().unwrap();
    let mut wrong = judge(handle, shapes, &wanted).await;
    let is_so = match (&result, &wanted) {
        (Ok(value), Outcome::Completed(wanted)) => value == wanted,
        (Err(ClientError::RunFailed { .. }), Outcome::Failed(_) | Outcome::Cancelled(_)) => true,
        _ => false,
    };
    if !is_so {
        wrong.push(format!("the result is {result:?}, and its node was to be {wanted:?}"));
    }
    wrong
}

/// Without a result a graph completes if all nodes do that no other needs.
async fn judge_parts(handle: &GraphHandle<()>, shapes: &[Shape]) -> Vec<String> {
    let result = ended(handle).await;
    let needed: BTreeSet<usize> =
        shapes.iter().flat_map(|shape| shape.needs.iter().map(|(other, ..)| *other)).collect();
    let mut failed = expected(shapes)
        .into_iter()
        .enumerate()
        .filter(|(place, end)| !needed.contains(place) && !matches!(end, Outcome::Completed(_)));
    let wanted = failed.next().map_or(Outcome::Completed(0), |(_, end)| end);
    let mut wrong = judge(handle, shapes, &wanted).await;
    if result.is_ok() != matches!(wanted, Outcome::Completed(_)) {
        wrong.push(format!("the graph ended with {result:?}, and {wanted:?} was to decide"));
    }
    wrong
}

async fn ended<T: runledger::Payload>(handle: &GraphHandle<T>) -> Result<T, ClientError> {
    tokio::time::timeout(LONG, handle.result()).await.expect("a graph should have ended long ago")
}

/// So many graphs, some at a time, whose nodes are taken from their workers now and then; half of them are submitted in parts.
async fn hold(n_graphs: u64, at_once: u64) {
    let fixture = Fixture::new().await;
    let mut workers = Vec::new();
    for _ in 0..3 {
        workers.push(worker(&Db::connect(fixture.database.url()).await.unwrap(), jobs![adds]).await);
    }
    let db = &fixture.db;
    let first = random(1 << 32);
    let mut connection = fixture.database.connect().await.unwrap();
    for seeds in (first..first + n_graphs).collect::<Vec<_>>().chunks(usize::try_from(at_once).unwrap()) {
        let (mut whole, mut parts) = (Vec::new(), Vec::new());
        for seed in seeds {
            let shapes = shapes(*seed);
            if seed % 2 == 0 {
                whole.push((*seed, submit_whole(db, &shapes).await, shapes));
            } else {
                parts.push(async move { (*seed, submit_in_parts(db, &shapes, *seed).await, shapes) });
            }
        }
        let parts = futures::future::join(futures::future::join_all(parts), take_some_away(db)).await.0;
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
    let deadlocks: i64 =
        scalar(db, "select deadlocks from pg_stat_database where datname = current_database()").await;
    assert_eq!(deadlocks, 0);
    for worker in workers {
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn graphs_of_any_shape_end_as_their_shape_says() {
    hold(60, 20).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes some minutes: `cargo random`"]
async fn two_thousand_graphs_of_any_shape_end_as_their_shape_says() {
    hold(2_000, 50).await;
}
