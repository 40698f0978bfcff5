//! Differences between the record of a run and the present code, with advice.

use std::fmt;

use crate::model::replay::StepKey;
use crate::model::replay::history_size::MAX_HISTORY;
use crate::model::replay::scope::{LOCAL_BITS, local};
use crate::model::run::failure::{Failure, FailureKind};
use crate::model::run::name::MAX_STEP_KEY;

/// A line of the program's source.
pub type Line = &'static std::panic::Location<'static>;

/// The record and the code disagree.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Divergence {
    /// The code claims another step than the record has at this place.
    Moved {
        /// The step of the present code.
        present: StepKey,
        /// The step of the record.
        recorded: String,
        /// The place in the order of claims.
        ordinal: u64,
        /// The line of the present step, if known.
        line: Option<Line>,
    },
    /// The step was recorded with another input.
    Input {
        /// The step.
        key: StepKey,
        /// The fingerprint of the recorded input.
        recorded: i64,
        /// The fingerprint of the present input.
        present: i64,
        /// The line of the present step, if known.
        line: Option<Line>,
    },
    /// The present code does not reach some recorded steps.
    Unmet {
        /// The first of these steps.
        recorded: String,
        /// The number of these steps.
        count: usize,
    },
    /// The present code awaits other results than the next recorded one.
    Order {
        /// The step whose result the record has next.
        recorded: String,
    },
    /// The recorded output of a step does not fit the type in the present code.
    Output {
        /// The step.
        key: String,
        /// What does not fit, and where.
        why: String,
    },
    /// The recorded compensation of a step cannot run. The code follows the record, but a failed or
    /// cancelled run would be blocked at this compensation.
    Compensation {
        /// The step of the compensation: `compensate[charge]`.
        key: String,
        /// The reason: its job or its input is missing, or the input does not decode.
        failure: Failure,
    },
    /// The code calls the client between its steps, and every replay would repeat the call. The
    /// code follows the record, but the run would fail there.
    BetweenSteps {
        /// The step whose result the code received last. `None` before the first result.
        after: Option<String>,
    },
    /// The record disagrees with itself.
    Contradiction,
    /// The key of a step, with the names of its branches, has more than 1,024 bytes.
    LongKey {
        /// The length of the key in bytes.
        length: usize,
        /// The name of the step.
        name: String,
    },
    /// The history of the run exceeds 128 MiB. Each attempt reads all of it.
    LargeHistory {
        /// The size of the history in bytes.
        size: usize,
    },
    /// A branch has more steps than an ordinal can count, or its scope number collides with
    /// another.
    Crowded {
        /// The path of the branch; empty for the workflow itself.
        scope: String,
    },
}

impl Divergence {
    /// The key of the first step that differs. If the record and the code have different steps,
    /// this is the recorded one.
    #[must_use]
    pub fn step(&self) -> Option<&str> {
        match self {
            Self::Moved { recorded, .. } | Self::Unmet { recorded, .. } | Self::Order { recorded } => {
                Some(recorded)
            }
            Self::Input { key, .. } => Some(key.as_str()),
            Self::Output { key, .. } | Self::Compensation { key, .. } => Some(key),
            Self::BetweenSteps { after } => after.as_deref(),
            Self::LongKey { name, .. } => Some(name),
            Self::Contradiction | Self::LargeHistory { .. } | Self::Crowded { .. } => None,
        }
    }

    /// Adds the line of the step whose claim found the divergence.
    #[must_use]
    pub fn at(mut self, here: Line) -> Self {
        if let Self::Moved { line, .. } | Self::Input { line, .. } = &mut self {
            *line = Some(here);
        }
        self
    }

    /// The line of the present step, if there is one and it is known.
    #[must_use]
    pub fn line(&self) -> Option<Line> {
        match self {
            Self::Moved { line, .. } | Self::Input { line, .. } => *line,
            Self::Unmet { .. }
            | Self::Order { .. }
            | Self::Output { .. }
            | Self::Compensation { .. }
            | Self::BetweenSteps { .. }
            | Self::LongKey { .. }
            | Self::Contradiction
            | Self::LargeHistory { .. }
            | Self::Crowded { .. } => None,
        }
    }

    /// The failure to show with the blocked run.
    #[must_use]
    pub fn to_failure(&self) -> Failure {
        Failure::new(FailureKind::Diverged, self.to_string())
    }
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Moved { present, recorded, ordinal, .. } => write!(
                f,
                "step `{present}` stands where `{recorded}` was recorded (step {}): the workflow changed while this \
                 run was in flight, or the order of its steps depends on something that is not recorded; nothing was \
                 overwritten",
                local(*ordinal).saturating_add(1)
            )?,
            Self::Input { key, recorded, present, .. } => write!(
                f,
                "step `{key}` was recorded with another input, or by another call (as `wf.start` where `wf.run` stands now): the workflow changed while this run was in flight, or \
                 its input depends on something that is not recorded; nothing was overwritten (input {recorded:016x} is \
                 recorded, {present:016x} is given)"
            )?,
            Self::Unmet { recorded, count } => write!(
                f,
                "step `{recorded}` is recorded, but the workflow no longer reaches it ({count} such): it changed \
                 while this run was in flight; nothing was overwritten"
            )?,
            Self::Order { recorded } => write!(
                f,
                "the result of step `{recorded}` was awaited next when this run was recorded, and the workflow now \
                 waits for others before it: it changed while this run was in flight; nothing was overwritten"
            )?,
            Self::Output { key, why } => {
                return write!(
                    f,
                    "step `{key}`: {why}; the type changed while this run was in flight, or does not read what it writes; nothing was overwritten; \
                     let it read what is recorded and resume the run, or enqueue it anew"
                );
            }
            Self::BetweenSteps { after } => {
                let place = after.as_ref().map_or_else(|| "before its first step".to_owned(), |key| format!("after step `{key}`"));
                return write!(
                    f,
                    "{place} the workflow asks the engine for something between its steps, where every replay would do it again: the run would fail there; do it in \
                     a step (`wf.step(…)`, `wf.tx(…)`)"
                );
            }
            Self::Compensation { key, failure } => {
                return write!(
                    f,
                    "step `{key}` could not take back what was done, where this run fails or is cancelled: {failure}; keep the job that its record names, or \
                     its old name as an alias, and let it read what is recorded"
                );
            }
            Self::Contradiction => f.write_str(
                "the recorded steps contradict one another: two have one place, or one was claimed after a result that \
                 is not recorded, so no workflow can have left them; nothing was overwritten",
            )?,
            Self::LongKey { length, name } => {
                return write!(
                    f,
                    "the key of step `{name}` has {length} bytes with the names of its branches, and the limit is {MAX_STEP_KEY}; the step was not executed; \
                     nest fewer branches, or give them shorter names"
                );
            }
            Self::LargeHistory { size } => {
                return write!(
                    f,
                    "the history of this run has {size} bytes, and above {MAX_HISTORY} a run begins no step; the step was not executed; store large \
                     outputs elsewhere and return their keys, or continue with `wf.continue_as_new`, which starts the history of the run afresh"
                );
            }
            Self::Crowded { scope } => {
                let most = 1_u64 << LOCAL_BITS;
                let advice = "continue a long loop with `wf.continue_as_new`, which starts the history of the run afresh";
                return if scope.is_empty() {
                    write!(f, "the workflow has {most} steps, the most that it can have; nothing was overwritten; {advice}")
                } else {
                    write!(
                        f,
                        "branch `{scope}` has {most} steps, the most that a branch can have, or by chance the number of another branch; nothing was \
                         overwritten; {advice}, or give the branch another name"
                    )
                };
            }
        }
        if let Some(line) = self.line() {
            write!(f, "; the present step is at {line}")?;
        }
        f.write_str("; restore the old order of steps and resume the run, or enqueue it anew")
    }
}

#[cfg(test)]
mod tests {
    use std::panic::Location;

    use super::*;
    use crate::model::replay::Replay;

    #[test]
    fn step_divergence_names_line_of_present_step() {
        let here = Location::caller();
        let mut replay = Replay::default();
        let key = replay.claim("charge", None, 7).unwrap().key;
        let divergence = Divergence::Input { key, recorded: 7, present: 8, line: None };
        assert_eq!(divergence.line(), None);
        let divergence = divergence.at(here);
        assert_eq!(divergence.line(), Some(here));
        assert!(divergence.to_string().contains(&format!("the present step is at {here}")), "{divergence}");
        assert_eq!(Divergence::Contradiction.at(here).line(), None, "it is of no step");
    }
}
