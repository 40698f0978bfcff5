//! The faults that can happen to a run.

use std::collections::{HashMap, HashSet};
use std::fmt;

use crate::definition::Definition;
use crate::engine::test_hooks::HoldAt;
use crate::store::failpoints::Moment;
use crate::store::failpoints::scope::Written;

#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// The worker dies at a write.
    Death(Written, Moment),
    /// The worker loses the run while it executes the body of a step, and continues.
    Loss { step: String, in_transaction: bool, hold: HoldAt },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Death(write, Moment::Before) => write!(f, "killed before the commit of {write}"),
            Self::Death(write, Moment::After) => write!(f, "killed after the commit of {write}"),
            Self::Death(write, Moment::Lost) => {
                write!(f, "killed after the lost acknowledgement of {write}")
            }
            Self::Loss { step, hold: HoldAt::After, .. } => write!(f, "delivered step `{step}` twice"),
            Self::Loss { step, hold: HoldAt::Before, .. } => {
                write!(f, "stalled in step `{step}` past its lease")
            }
        }
    }
}

/// Replaces every name of a renamed job with its oldest one, which the names of steps and faults
/// use.
pub(super) fn by_oldest_names(
    text: &str,
    definitions: impl IntoIterator<Item = &'static Definition>,
) -> String {
    let renamed: HashMap<&str, &str> = definitions
        .into_iter()
        .flat_map(|definition| definition.names().map(|name| (name, definition.oldest_name())))
        .collect();
    let is_of_a_name = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    // Each piece is a name, or a part of one, and the characters that follow it.
    let pieces = text.split_inclusive(|c| !is_of_a_name(c));
    pieces.fold(String::with_capacity(text.len()), |said, piece| {
        let name = piece.trim_end_matches(|c| !is_of_a_name(c));
        said + renamed.get(name).unwrap_or(&name) + &piece[name.len()..]
    })
}

/// Returns every fault that a run with these writes and steps can meet, each once.
pub(super) fn faults(written: &[Written], begun: &[(String, bool)]) -> Vec<Fault> {
    let mut seen = HashSet::new();
    let writes = written.iter().filter(|write| seen.insert(*write));
    let deaths = writes.flat_map(|write| {
        [Moment::Before, Moment::Lost, Moment::After].map(|moment| Fault::Death(write.clone(), moment))
    });
    let losses = begun.iter().flat_map(|(step, in_transaction)| {
        let (step, in_transaction) = (step.clone(), *in_transaction);
        [HoldAt::After, HoldAt::Before].map(|hold| Fault::Loss { step: step.clone(), in_transaction, hold })
    });
    deaths.chain(losses).collect()
}
