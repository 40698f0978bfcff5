//! A row that this version cannot read: the path and the reason. An unreadable row blocks only its
//! own run.

use std::fmt;

use crate::model::run::failure::{Failure, FailureKind};

/// A value in a run's rows that this version cannot read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{path}` of this run cannot be read: {problem}; nothing was executed; {advice}")]
pub struct Unreadable {
    /// The column, and the path inside it if known: `options.priority`, `step[charge].seen`.
    pub path: String,
    /// Why the value is unreadable.
    pub problem: String,
    advice: &'static str,
}

/// The advice for a value that no version writes.
const MEND: &str = "correct the row and resume the run, or cancel it";

/// The advice for a value that a newer version wrote.
const UPGRADE: &str =
    "upgrade the workers of its queue to the version of the client that wrote it, then resume the run";

impl Unreadable {
    /// A value in a form that no version writes.
    pub fn new(path: impl Into<String>, problem: &dyn fmt::Display) -> Self {
        Self { path: path.into(), problem: problem.to_string(), advice: MEND }
    }

    /// A field that only a newer version writes.
    pub fn unknown(path: impl Into<String>) -> Self {
        let problem = "this version does not know the field, and it may change how the run is to be executed";
        Self { path: path.into(), problem: problem.to_owned(), advice: UPGRADE }
    }

    /// A counter that reached the maximum of its column.
    pub fn full(counter: &str) -> Self {
        Self::new(counter, &format!("it is {}, and the next attempt cannot be counted", i32::MAX))
    }

    /// The failure of the blocked run.
    pub fn to_failure(&self) -> Failure {
        Failure::new(FailureKind::Decode, self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_value_names_place_and_remedy() {
        for (unreadable, words) in [
            (
                Unreadable::new("input", &"no"),
                "`input` of this run cannot be read: no; nothing was executed; correct",
            ),
            (Unreadable::unknown("options.a"), "upgrade the workers"),
            (Unreadable::full("attempt"), "`attempt` of this run cannot be read: it is 2147483647"),
        ] {
            let failure = unreadable.to_failure();
            assert_eq!(failure.kind, FailureKind::Decode);
            assert!(failure.message.contains(words), "{failure}");
        }
    }
}
