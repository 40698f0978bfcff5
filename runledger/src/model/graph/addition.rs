//! New nodes of a live graph: how many dependencies each waits for, and which nodes cannot succeed
//! any more.

use std::collections::BTreeMap;

use super::Need;

/// The first state of an added node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeStatus {
    /// The number of dependencies that it waits for.
    pub n_waits: usize,
    /// The reason why the node cannot succeed any more, if so.
    pub unreachable: Option<Unreachable>,
}

/// The outcome of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEnding {
    /// The node has an output.
    Completed,
    /// The node failed.
    Failed,
    /// The node was cancelled.
    Cancelled,
    /// The node did not run, because a condition was false.
    Skipped,
}

impl NodeEnding {
    const ALL: [Self; 4] = [Self::Completed, Self::Failed, Self::Cancelled, Self::Skipped];

    /// The name of the outcome in SQL.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Skipped => "skipped",
        }
    }

    /// The outcome with this name.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ending| ending.as_str() == word)
    }
}

/// The reason why a node cannot succeed any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreachable {
    /// The node that did not complete, although this node, or one of its dependencies, needs its
    /// success.
    pub cause: String,
    /// The outcome of that node.
    pub ending: NodeEnding,
}

impl Unreachable {
    /// Orders causes: the smallest counts. A failure or a cancel sorts before a skip, because it
    /// explains more.
    fn rank(&self) -> (bool, &str) {
        (self.ending == NodeEnding::Skipped, &self.cause)
    }
}

/// The first state of each node. `needs` has the dependencies of each node by place, without
/// cycles. `name` returns the name at a place, and `ended` the outcome of an existing node there.
/// If there are several causes, the smallest counts, as when a node ends (`release.sql`).
#[must_use]
pub fn standings<'n>(
    needs: &[BTreeMap<usize, Need>],
    name: impl Fn(usize) -> &'n str,
    ended: impl Fn(usize) -> Option<NodeEnding>,
) -> Vec<NodeStatus> {
    let mut dependants: Vec<Vec<usize>> = vec![Vec::new(); needs.len()];
    let mut n_unknown: Vec<usize> = needs.iter().map(BTreeMap::len).collect();
    for (place, needs) in needs.iter().enumerate() {
        for needed in needs.keys() {
            dependants[*needed].push(place);
        }
    }
    let mut known: Vec<usize> = (0..needs.len()).filter(|place| n_unknown[*place] == 0).collect();
    let mut standings = vec![NodeStatus::default(); needs.len()];
    while let Some(place) = known.pop() {
        let mut standing = NodeStatus::default();
        for (needed, need) in &needs[place] {
            let failed = match ended(*needed) {
                Some(NodeEnding::Completed) => continue,
                Some(ending) => Unreachable { cause: name(*needed).to_owned(), ending },
                None => match &standings[*needed].unreachable {
                    Some(unreachable) => unreachable.clone(),
                    None => {
                        standing.n_waits += 1;
                        continue;
                    }
                },
            };
            let is_first = standing.unreachable.as_ref().is_none_or(|other| failed.rank() < other.rank());
            if !need.on_terminal && is_first {
                standing.unreachable = Some(failed);
            }
        }
        if standing.unreachable.is_some() {
            standing.n_waits = 0;
        }
        standings[place] = standing;
        for dependant in &dependants[place] {
            n_unknown[*dependant] -= 1;
            if n_unknown[*dependant] == 0 {
                known.push(*dependant);
            }
        }
    }
    standings
}
