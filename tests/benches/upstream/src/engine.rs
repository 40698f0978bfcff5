//! The interface that both engines implement.

use std::ops::Range;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::Result;

/// With the run's number, a payload of about 100 bytes.
pub const NOTE: &str =
    "somebody@example.com hello world hello world hello world hello world hello world hello";

/// The payload as untyped JSON.
pub fn payload(n: u64) -> Value {
    json!({ "user_id": n, "note": NOTE })
}

/// A client that stores runs and graphs in its own database.
pub trait Store: Sized + Send + Sync + 'static {
    /// The SQL that counts the stored runs, if each was enqueued singly.
    const RUNS: &'static str;
    /// The SQL that counts the stored graphs.
    const GRAPHS: &'static str;

    /// Opens a client and creates the schema.
    fn open(url: &str) -> impl Future<Output = Result<Self>> + Send;

    /// Enqueues one run in its own transaction.
    fn enqueue(&self, n: u64) -> impl Future<Output = Result<()>> + Send;

    /// Enqueues runs in one transaction, as fast as the engine can.
    fn enqueue_all(&self, runs: Range<u64>) -> impl Future<Output = Result<()>> + Send;

    /// Submits one graph in its own transaction.
    fn submit(&self, nodes: &[Planned]) -> impl Future<Output = Result<Uuid>> + Send;
}

/// An engine with one set of settings.
pub trait Engine: Store {
    const TABLES: Tables;

    /// A worker in this process, with its own connections.
    type Worker: Send;

    fn work(&self) -> impl Future<Output = Result<Self::Worker>> + Send;

    /// Stops a worker and closes its connections.
    fn stop(worker: Self::Worker) -> impl Future<Output = Result<()>> + Send;
}

/// Queries on the engine's own tables.
pub struct Tables {
    /// Whether the graph `$1` completed. No row while it runs.
    pub ended: &'static str,
    /// Counts the ended graphs, and the completed ones among them.
    pub count_ended: &'static str,
    /// Counts the nodes that failed finally.
    pub failed_nodes: &'static str,
    /// Counts the attempts of nodes beyond the first.
    pub repeated: &'static str,
}

/// A node of a graph to submit.
pub struct Planned {
    pub name: String,
    /// The nodes whose success it needs.
    pub needs: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// A chain of this many nodes.
    Chain(usize),
    /// One node, this many parallel nodes, and a last node that needs all of them.
    FanOut(usize),
    /// Eight parallel chains of two nodes.
    Siblings,
}

impl Shape {
    /// The nodes in dependency order.
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
    fn shape_lists_every_node_after_its_dependencies() {
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
