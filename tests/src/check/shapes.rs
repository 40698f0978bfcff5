//! I14 for graphs of any shape: random graphs of nodes that return, fail, retry and take time. The
//! shape alone determines how each node must end.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use runledger::prelude::*;
use runledger::{
    AnyCall, ClientError, Failure, FailureKind, Graph, GraphHandle, GraphState, Need, Node, NodeInfo,
    Outcome, Payload, RunState,
};
use serde_json::json;
use uuid::Uuid;

use super::Violations;

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Act {
    /// Returns the sum of its number and its inputs.
    Gives,
    /// Fails for good.
    Fails,
    /// Fails in its first attempt.
    TriesAgain,
    /// As [`Gives`](Self::Gives), after some milliseconds.
    TakesAWhile,
}

/// The value of a dependency that returned nothing.
const FAILED: u64 = 1_000_003;
const CANCELLED: u64 = 7_000_001;

/// Returns the sum of its own number and its inputs.
#[job(name = "check.adds", queue = "checks", max_attempts = 3, backoff = "1ms..1ms")]
pub async fn check_adds(
    own: u64,
    act: Act,
    #[default] parts: Vec<u64>,
    #[default] ends: Vec<Outcome<u64>>,
    #[inject] context: &Context,
) -> Result<u64> {
    match act {
        Act::Fails => return Err(Error::terminal("it was to fail")),
        Act::TriesAgain if context.attempt() == 1 => return Err("the first attempt fails".into()),
        Act::TakesAWhile => tokio::time::sleep(Duration::from_micros(random() % 20_000)).await,
        Act::Gives | Act::TriesAgain => {}
    }
    let end = |end: &Outcome<u64>| match end {
        Outcome::Completed(value) => *value,
        Outcome::Failed(_) => FAILED,
        Outcome::Cancelled(_) => CANCELLED,
    };
    Ok((own + parts.iter().sum::<u64>() + ends.iter().map(end).sum::<u64>()) % 1_000_000_007)
}

/// One node of a shape.
#[derive(Clone, Debug)]
pub struct Shape {
    /// What the node does.
    pub act: Act,
    /// Its dependencies: the node, whether any outcome will do, and whether its output is an input.
    pub needs: Vec<(usize, bool, bool)>,
}

/// Returns a random shape of 2 to 50 nodes: sparse or dense, deep or wide.
#[must_use]
pub fn shapes(seed: u64) -> Vec<Shape> {
    let mut dice = fastrand::Rng::with_seed(seed);
    let n_nodes = 2 + dice.usize(..49);
    let (density, reach) = (1 + dice.usize(..5), 1 + dice.usize(..n_nodes));
    (0..n_nodes)
        .map(|place| {
            let act = match dice.usize(..12) {
                0 => Act::Fails,
                1 => Act::TriesAgain,
                2 | 3 => Act::TakesAWhile,
                _ => Act::Gives,
            };
            let mut needs: BTreeMap<usize, (bool, bool)> = BTreeMap::new();
            for _ in 0..dice.usize(..=density) {
                if place > 0 {
                    let other = place - 1 - dice.usize(..reach.min(place));
                    needs.insert(other, (dice.usize(..3) == 0, dice.usize(..2) == 0));
                }
            }
            let needs = needs.into_iter().map(|(other, (on_terminal, fed))| (other, on_terminal, fed));
            Shape { act, needs: needs.collect() }
        })
        .collect()
}

fn name_of(place: usize) -> String {
    format!("n{place:02}")
}

/// Returns how each node must end.
#[must_use]
pub fn expected(shapes: &[Shape]) -> Vec<Outcome<u64>> {
    let mut ends: Vec<Outcome<u64>> = Vec::new();
    let failure = || Failure::new(FailureKind::Error, "");
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

/// Declares some nodes of a shape. Dependencies outside of `places` are declared as existing nodes.
pub fn declare(graph: &mut Graph, shapes: &[Shape], places: Range<usize>) -> Option<Node<serde_json::Value>> {
    let mut last = None;
    let mut there = BTreeSet::new();
    for place in places.clone() {
        let shape = &shapes[place];
        let call = AnyCall::by_name("check.adds", &json!({"own": place, "act": shape.act}));
        let node = graph.node(name_of(place), call);
        let (mut n_parts, mut n_ends) = (0, 0);
        for (other, on_terminal, fed) in &shape.needs {
            if *other < places.start && there.insert(*other) {
                graph.existing_node::<u64>(name_of(*other));
            }
            let need = Need::from(name_of(*other));
            let need = if *on_terminal { need.on_any_outcome() } else { need };
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

/// Returns a number that no seed decides. The last bits of a v7 id are random.
fn random() -> u64 {
    Uuid::now_v7().as_u64_pair().1 & 0xffff_ffff
}

/// Returns the graph of a shape, with its last node as the result.
///
/// # Panics
/// If the shape has no nodes.
pub fn graph_of(shapes: &[Shape]) -> Graph<serde_json::Value> {
    let mut graph = Graph::new(NAME);
    let last = declare(&mut graph, shapes, 0..shapes.len());
    graph.result(last.unwrap_or_else(|| unreachable!("a shape has nodes")))
}

/// The name of the graphs.
pub const NAME: &str = "check.shape";

/// Returns the idempotency key of the graph with this seed.
#[must_use]
pub fn key_of(seed: u64) -> String {
    format!("shape-{seed}")
}

/// Compares every graph that has the key of its seed with its shape, once all have ended.
///
/// # Errors
/// If the database does not answer.
pub async fn wrong(db: &Db) -> Result<(usize, Violations), ClientError> {
    let graphs: Vec<(Uuid, String)> = sqlx::query_as(
        "select run_id, substr(idempotency_key, 7) from runledger.run where graph is not null and idempotency_key like 'shape-%'",
    )
    .fetch_all(db.pool())
    .await?;
    let mut wrong = Vec::new();
    for (run_id, seed) in &graphs {
        let Ok(seed) = seed.parse() else { continue };
        let found = judge(&db.graph(*run_id), &shapes(seed)).await?;
        wrong.extend(found.into_iter().map(|found| format!("graph {run_id} of the seed {seed}: {found}")));
    }
    Ok((graphs.len(), wrong))
}

/// Compares a terminal graph, whose result is its last node, with its shape.
///
/// # Errors
/// If the database does not answer.
pub async fn judge(
    handle: &GraphHandle<serde_json::Value>,
    shapes: &[Shape],
) -> Result<Violations, ClientError> {
    let ends = expected(shapes);
    let Some(wanted) = ends.last() else { return Ok(Violations::new()) };
    let mut wrong = misended(handle, shapes, wanted).await?;
    let result = handle.result().await;
    let is_so = match (&result, wanted) {
        (Ok(value), Outcome::Completed(wanted)) => value == wanted,
        (Err(ClientError::RunFailed { .. }), Outcome::Failed(_) | Outcome::Cancelled(_)) => true,
        _ => false,
    };
    if !is_so {
        wrong.push(format!("the result is {result:?}, and its node was to be {wanted:?}"));
    }
    Ok(wrong)
}

/// Compares the nodes with the shape, and the end of the graph with `wanted`.
///
/// # Errors
/// If the database does not answer.
pub async fn misended<T: Payload>(
    handle: &GraphHandle<T>,
    shapes: &[Shape],
    wanted: &Outcome<u64>,
) -> Result<Violations, ClientError> {
    let nodes: Vec<NodeInfo> = handle.nodes().await?;
    let mut wrong = Vec::new();
    for ((node, end), shape) in nodes.iter().zip(&expected(shapes)).zip(shapes) {
        let (state, attempts) = match (end, shape.act) {
            (Outcome::Cancelled(_), _) => (RunState::Cancelled, 0),
            (Outcome::Failed(_), _) => (RunState::Failed, 1),
            (Outcome::Completed(_), Act::TriesAgain) => (RunState::Completed, 2),
            (Outcome::Completed(_), _) => (RunState::Completed, 1),
        };
        if (node.state, node.attempt) != (state, attempts) {
            let (name, is, attempt) = (&node.name, node.state, node.attempt);
            wrong.push(format!("{name} is {is} in attempt {attempt}, not {state} in {attempts}"));
        }
    }
    let is_whole = nodes.iter().all(|node| node.state == RunState::Completed);
    let wanted = match wanted {
        Outcome::Completed(_) if is_whole => GraphState::Completed,
        Outcome::Completed(_) => GraphState::CompletedWithErrors,
        Outcome::Failed(_) | Outcome::Cancelled(_) => GraphState::Failed,
    };
    let state = handle.graph_state().await?;
    if state != wanted {
        wrong.push(format!("the graph is {state:?}, and was to be {wanted:?}"));
    }
    Ok(wrong)
}
