//! Nodes that are added to a graph that goes on: for how many others each waits, and which cannot succeed any more.

use std::collections::BTreeMap;

use super::Need;

/// Where an added node stands at first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeStatus {
    /// For how many others it waits.
    pub n_waits: usize,
    /// Why it cannot succeed any more, if so.
    pub hopeless: Option<Unreachable>,
}

/// How a node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEnding {
    /// With an output.
    Completed,
    /// With a failure.
    Failed,
    /// Cancelled.
    Cancelled,
    /// Without having run, as a condition did not hold.
    Skipped,
}

impl NodeEnding {
    const ALL: [Self; 4] = [Self::Completed, Self::Failed, Self::Cancelled, Self::Skipped];

    /// The word of statements for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Skipped => "skipped",
        }
    }

    /// What a word of statements stands for.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ending| ending.as_str() == word)
    }
}

/// Why a node cannot succeed any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreachable {
    /// The node that did not complete, though success was needed of it, or of one that needed it.
    pub cause: String,
    /// How that ended.
    pub ending: NodeEnding,
}

impl Unreachable {
    /// Of several causes the least counts: one that was skipped explains less than one that failed.
    fn rank(&self) -> (bool, &str) {
        (self.ending == NodeEnding::Skipped, &self.cause)
    }
}

/// Where each node stands at first: `needs` are the places that each needs, without a circle; `name` gives the name at a place, and `ended` says how the node there
/// ended, of those that were there before. Of several causes the first counts, as it does when a node ends (`release.sql`).
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
                None => match &standings[*needed].hopeless {
                    Some(hopeless) => hopeless.clone(),
                    None => {
                        standing.n_waits += 1;
                        continue;
                    }
                },
            };
            let is_first = standing.hopeless.as_ref().is_none_or(|other| failed.rank() < other.rank());
            if !need.on_terminal && is_first {
                standing.hopeless = Some(failed);
            }
        }
        if standing.hopeless.is_some() {
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
