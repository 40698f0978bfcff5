//! Where a graph stands.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where a graph stands, by how its nodes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GraphState {
    /// Some node runs or may run, or it is about to be concluded.
    Running,
    /// Nothing goes on but waiting for a gate to be decided.
    Waiting,
    /// It completed, and so did every node that was not skipped.
    Completed,
    /// It completed, though some node did not: its result did, or what any end of such a node was enough for.
    CompletedWithErrors,
    /// It failed.
    Failed,
    /// It was cancelled.
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
