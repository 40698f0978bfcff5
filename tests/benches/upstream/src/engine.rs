//! What is asked of both engines, in the same words.

use std::ops::Range;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::Result;

/// What every run carries beside its number: about a hundred bytes with it.
pub const NOTE: &str =
    "somebody@example.com hello world hello world hello world hello world hello world hello";

/// The same, as whoever has no types for it stores it.
pub fn payload(n: u64) -> Value {
    json!({ "user_id": n, "note": NOTE })
}

/// Something that stores runs and graphs, in a database of its own.
pub trait Store: Sized + Send + Sync + 'static {
    /// How many runs are stored, where each was enqueued by itself, in SQL.
    const RUNS: &'static str;
    /// How many graphs are stored.
    const GRAPHS: &'static str;

    /// A client; makes the schema.
    fn open(url: &str) -> impl Future<Output = Result<Self>> + Send;

    /// Enqueues one run, in a transaction of its own.
    fn enqueue(&self, n: u64) -> impl Future<Output = Result<()>> + Send;

    /// Enqueues some runs in one transaction, by the quickest way that it has.
    fn enqueue_all(&self, runs: Range<u64>) -> impl Future<Output = Result<()>> + Send;

    /// Submits one graph, in a transaction of its own.
    fn submit(&self, nodes: &[Planned]) -> impl Future<Output = Result<Uuid>> + Send;
}

/// An engine at one of its settings.
pub trait Engine: Store {
    /// Where it says how its work stands.
    const TABLES: Tables;

    /// A worker of it in this process, with connections of its own.
    type Worker: Send;

    /// Starts a worker.
    fn work(&self) -> impl Future<Output = Result<Self::Worker>> + Send;

    /// Stops a worker, with all its connections.
    fn stop(worker: Self::Worker) -> impl Future<Output = Result<()>> + Send;
}

/// The engine's own tables, in SQL.
pub struct Tables {
    /// Whether the graph `$1` completed; no row while it goes on.
    pub ended: &'static str,
    /// How many graphs have ended, and how many of them completed.
    pub count_ended: &'static str,
    /// How many nodes failed for good.
    pub failed_nodes: &'static str,
    /// How many attempts of nodes there were beyond the first of each.
    pub repeated: &'static str,
}

/// A node of a graph before it is submitted.
pub struct Planned {
    pub name: String,
    /// Whose success it needs.
    pub needs: Vec<String>,
}

/// Which graph.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// So many nodes, each after the one before.
    Chain(usize),
    /// One, then so many side by side, then one that needs all of them.
    FanOut(usize),
    /// Eight chains of two nodes, side by side.
    Siblings,
}

impl Shape {
    /// Its nodes, each behind those that it needs.
    pub fn nodes(self) -> Vec<Planned> {
        let node = |name: String, needs: Vec<String>| Planned { name, needs };
        match self {
            Self::Chain(length) => (0..length)
                .map(|n| {
                    node(
                        format!("n{n}"),
                        n.checked_sub(1).map(|before| format!("n{before}")).into_iter().collect(),
                    )
                })
                .collect(),
            Self::FanOut(width) => {
                let middle = |n| format!("n{n}");
                let mut nodes = vec![node("first".to_owned(), Vec::new())];
                nodes.extend((0..width).map(|n| node(middle(n), vec!["first".to_owned()])));
                nodes.push(node("last".to_owned(), (0..width).map(middle).collect()));
                nodes
            }
            Self::Siblings => (0..8)
                .flat_map(|n| {
                    let first = format!("first{n}");
                    [node(first.clone(), Vec::new()), node(format!("second{n}"), vec![first])]
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_has_its_nodes_behind_those_that_they_need() {
        for (shape, n_nodes, n_edges) in
            [(Shape::Chain(3), 3, 2), (Shape::FanOut(100), 102, 200), (Shape::Siblings, 16, 8)]
        {
            let nodes = shape.nodes();
            assert_eq!(nodes.len(), n_nodes, "{shape:?}");
            assert_eq!(nodes.iter().map(|node| node.needs.len()).sum::<usize>(), n_edges, "{shape:?}");
            for (at, node) in nodes.iter().enumerate() {
                let is_before = |need: &String| nodes[..at].iter().any(|other| other.name == *need);
                assert!(node.needs.iter().all(is_before), "{shape:?}: {}", node.name);
            }
        }
    }
}
