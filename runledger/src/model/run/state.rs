//! The states of a run, and the table of their transitions.
//!
//! [`RunState::next`] and the diagram in the documentation derive from [`TRANSITIONS`]. A test
//! checks the statements of the store against it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The state of a run. A run has exactly one, derived from the table that contains its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunState {
    /// Workers may claim the run, now or at its start instant (after a delay, a retry or a durable
    /// sleep).
    Queued,
    /// A worker holds its lease.
    Running,
    /// The run waits for an event, such as the outcome of a child run.
    Waiting,
    /// The run needs an operator: its code and its record disagree, or it keeps killing its
    /// process.
    Blocked,
    /// An operator paused the run, and must resume it.
    Paused,
    /// The run ended with an output.
    Completed,
    /// The run ended with an error and is not retried.
    Failed,
    /// The run was cancelled.
    Cancelled,
}

/// An event that changes the state of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RunEvent {
    /// A worker claims the run.
    Claim,
    /// The attempt ends with an output.
    Complete,
    /// The attempt fails, and the run is retried.
    Retry,
    /// The attempt fails, and the run is not retried.
    Fail,
    /// The run sleeps until an instant.
    Sleep,
    /// The run waits for an event, such as the outcome of a child.
    Suspend,
    /// The awaited event occurred.
    Wake,
    /// The worker returns the run, or the worker is dead.
    Release,
    /// A slice of the work is done, and the next slice begins.
    Continue,
    /// The run is blocked with a reason.
    Block,
    /// An operator pauses the run.
    Pause,
    /// An operator resumes a blocked or paused run.
    Resume,
    /// The run is cancelled.
    Cancel,
}

use RunEvent::{
    Block, Cancel, Claim, Complete, Continue, Fail, Pause, Release, Resume, Retry, Sleep, Suspend, Wake,
};
use RunState::{Blocked, Cancelled, Completed, Failed, Paused, Queued, Running, Waiting};

/// All legal transitions. The statements of the store refuse every other transition.
pub const TRANSITIONS: &[(RunState, RunEvent, RunState)] = &[
    (Queued, Claim, Running),
    (Running, Complete, Completed),
    (Running, Retry, Queued),
    (Running, Fail, Failed),
    (Running, Sleep, Queued),
    (Running, Suspend, Waiting),
    (Waiting, Wake, Queued),
    (Running, Release, Queued),
    (Running, Continue, Queued),
    (Running, Block, Blocked),
    (Blocked, Resume, Queued),
    (Queued, Pause, Paused),
    (Running, Pause, Paused),
    (Waiting, Pause, Paused),
    (Paused, Resume, Queued),
    (Queued, Cancel, Cancelled),
    (Running, Cancel, Cancelled),
    (Waiting, Cancel, Cancelled),
    (Blocked, Cancel, Cancelled),
    (Paused, Cancel, Cancelled),
];

impl RunState {
    /// All states, in the order of a run's life.
    pub const ALL: [Self; 8] = [Queued, Running, Waiting, Blocked, Paused, Completed, Failed, Cancelled];

    /// The state after `event`. `None` if the table has no such transition.
    #[must_use]
    pub fn next(self, event: RunEvent) -> Option<Self> {
        TRANSITIONS.iter().find(|(from, by, _)| *from == self && *by == event).map(|(_, _, to)| *to)
    }

    /// Whether the state is final.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        match self {
            Completed | Failed | Cancelled => true,
            Queued | Running | Waiting | Blocked | Paused => false,
        }
    }

    /// The name of the state in SQL, in the CLI and in logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Queued => "queued",
            Running => "running",
            Waiting => "waiting",
            Blocked => "blocked",
            Paused => "paused",
            Completed => "completed",
            Failed => "failed",
            Cancelled => "cancelled",
        }
    }

    /// The state with this name.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_terminal_when_no_transition_leaves_it() {
        for state in RunState::ALL {
            let is_left = TRANSITIONS.iter().any(|(from, _, _)| *from == state);
            assert_eq!(state.is_terminal(), !is_left, "{state}");
        }
    }

    #[test]
    fn every_state_except_queued_has_incoming_transition() {
        for state in RunState::ALL.into_iter().filter(|state| *state != Queued) {
            assert!(TRANSITIONS.iter().any(|(_, _, to)| *to == state), "{state} has no way in");
        }
    }

    #[test]
    fn state_and_event_have_at_most_one_transition() {
        for (i, (from, event, _)) in TRANSITIONS.iter().enumerate() {
            let twin = TRANSITIONS[i + 1..].iter().any(|(f, e, _)| f == from && e == event);
            assert!(!twin, "{from} has two ways on {event:?}");
        }
    }

    #[test]
    fn state_round_trips_through_its_name() {
        assert!(RunState::ALL.into_iter().all(|state| RunState::parse(state.as_str()) == Some(state)));
        assert_eq!(RunState::parse("succeeded"), None);
        let quoted =
            |state: RunState| serde_json::to_string(&state).map(|word| word == format!("\"{state}\""));
        assert!(RunState::ALL.into_iter().all(|state| quoted(state).is_ok_and(|same| same)));
    }

    #[test]
    fn next_state_follows_transition_table() {
        assert_eq!(Running.next(Complete), Some(Completed));
        assert_eq!(Running.next(Retry), Some(Queued));
        assert_eq!((Queued.next(Complete), Completed.next(Claim)), (None, None));
    }
}
