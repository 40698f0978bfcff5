//! What can happen to a run.

use std::collections::HashSet;
use std::fmt;

use crate::runtime::scene::Hold;
use crate::store::failpoints::Moment;
use crate::store::failpoints::scope::Written;

/// One fault.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// The worker dies at a write.
    Death(Written, Moment),
    /// The worker loses the run while it is in the body of a step, and goes on.
    Loss { step: String, in_transaction: bool, hold: Hold },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Death(write, Moment::Before) => write!(f, "killed before the commit of {write}"),
            Self::Death(write, Moment::After) => write!(f, "killed after the commit of {write}"),
            Self::Death(write, Moment::Lost) => {
                write!(f, "killed after the lost acknowledgement of {write}")
            }
            Self::Loss { step, hold: Hold::After, .. } => write!(f, "delivered step `{step}` twice"),
            Self::Loss { step, hold: Hold::Before, .. } => {
                write!(f, "stalled in step `{step}` past its lease")
            }
        }
    }
}

/// Every fault that a run with these writes and steps can meet, each once.
pub(super) fn faults(written: &[Written], begun: &[(String, bool)]) -> Vec<Fault> {
    let mut seen = HashSet::new();
    let writes = written.iter().filter(|write| seen.insert(*write));
    let deaths = writes.flat_map(|write| {
        [Moment::Before, Moment::Lost, Moment::After].map(|moment| Fault::Death(write.clone(), moment))
    });
    let losses = begun.iter().flat_map(|(step, in_transaction)| {
        let (step, in_transaction) = (step.clone(), *in_transaction);
        [Hold::After, Hold::Before].map(|hold| Fault::Loss { step: step.clone(), in_transaction, hold })
    });
    deaths.chain(losses).collect()
}
