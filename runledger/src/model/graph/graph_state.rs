//! The states of a graph.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The state of a graph, derived from the states of its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GraphState {
    /// A node runs or can run, or the graph is about to be concluded.
    Running,
    /// The graph only waits for decisions about gates.
    Waiting,
    /// The graph and all nodes that were not skipped completed.
    Completed,
    /// The graph completed although a node did not: the result node completed, or any outcome of
    /// that node was enough for its dependents.
    CompletedWithErrors,
    /// The graph failed.
    Failed,
    /// The graph was cancelled.
    Cancelled,
}

impl fmt::Display for GraphState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Completed => "completed",
            Self::CompletedWithErrors => "completed with errors",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        })
    }
}
