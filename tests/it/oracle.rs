//! Behaviours 27 and 28 for graphs of any shape: random graphs of nodes that give, fail, try again, take a while and are taken from their workers, held against what
//! their shape alone says.

use std::collections::BTreeMap;
use std::time::Duration;

use runledger::prelude::*;
use runledger::{AnyCall, ClientError, Graph, GraphHandle, GraphState, Need, NodeInfo, Outcome, RunState};
use runledger_tests::Fixture;
use runledger_tests::check::graphs;
use serde_json::json;

use crate::combinators::take_some_away;
use crate::rows::{LONG, random, worker};

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

/// The graph of a shape, with its last node as the result.
fn graph_of(shapes: &[Shape]) -> Graph<serde_json::Value> {
    let mut graph = Graph::new("oracle");
    let mut last = None;
    for (place, shape) in shapes.iter().enumerate() {
        let call = AnyCall::by_name("adds", &json!({"own": place, "act": shape.act}));
        let node = graph.node(name_of(place), call);
        let (mut n_parts, mut n_ends) = (0, 0);
        for (other, on_terminal, fed) in &shape.needs {
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
    graph.result(last.unwrap())
}

/// What differs from what the shape says.
async fn judge(handle: &GraphHandle<serde_json::Value>, shapes: &[Shape]) -> Vec<String> {
    let expected = expected(shapes);
    let result =
        tokio::time::timeout(LONG, handle.result()).await.expect("a graph should have ended long ago");
    let mut wrong = Vec::new();
    let nodes = handle.nodes().await.unwrap();
    for ((node, end), shape) in nodes.iter().zip(&expected).zip(shapes) {
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
    let is_whole = |node: &NodeInfo| node.state == RunState::Completed;
    let state = handle.graph_state().await.unwrap();
    let said = match (&result, expected.last()) {
        (Ok(value), Some(Outcome::Completed(wanted))) => {
            let all = if nodes.iter().all(is_whole) {
                GraphState::Completed
            } else {
                GraphState::CompletedWithErrors
            };
            value == wanted && state == all
        }
        (Err(ClientError::RunFailed { .. }), Some(Outcome::Failed(_) | Outcome::Cancelled(_))) => {
            state == GraphState::Failed
        }
        _ => false,
    };
    if !said {
        wrong.push(format!(
            "the graph is {state:?} with {result:?}, and its last node was to be {:?}",
            expected.last()
        ));
    }
    wrong
}

/// So many graphs, some at a time, whose nodes are taken from their workers now and then.
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
        let mut handles = Vec::new();
        for seed in seeds {
            let shapes = shapes(*seed);
            handles.push((*seed, graph_of(&shapes).enqueue(db).await.unwrap(), shapes));
        }
        take_some_away(db).await;
        let seen = graphs::wrong(&mut connection, 0).await.unwrap();
        assert!(seen.is_empty(), "while they run, of the seeds {seeds:?}: {seen:?}");
        for (seed, handle, shapes) in handles {
            let wrong = judge(&handle, &shapes).await;
            assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
        }
    }
    let seen = graphs::wrong(&mut connection, 0).await.unwrap();
    assert!(seen.is_empty(), "{seen:?}");
    for worker in workers {
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn graphs_of_any_shape_end_as_their_shape_says() {
    hold(60, 20).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "some minutes; CONTRIBUTING says how to run it"]
async fn two_thousand_graphs_of_any_shape_end_as_their_shape_says() {
    hold(2_000, 50).await;
}
