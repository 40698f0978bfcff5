//! The states of a run, and the one table of their transitions.
//!
//! From [`TRANSITIONS`] come [`RunState::next`], the diagram in the documentation, and the test that holds the
//! statements of the store against it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where a run stands. One of these at any moment, derived from the one table that holds the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunState {
    /// It may be claimed, now or at its instant (a delay, a retry, a durable sleep).
    Queued,
    /// A worker holds its lease.
    Running,
    /// It waits for something other than time, such as a child run.
    Waiting,
    /// It cannot go on without a person: its code and its record disagree, or it keeps killing its process.
    Blocked,
    /// A person has paused it, until a person resumes it.
    Paused,
    /// It ended with an output.
    Completed,
    /// It ended with an error that is not tried again.
    Failed,
    /// It was cancelled.
    Cancelled,
}

/// What may happen to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RunEvent {
    /// A worker takes it.
    Claim,
    /// Its attempt ends with an output.
    Complete,
    /// Its attempt fails and there is another one.
    Retry,
    /// Its attempt fails and there is no other.
    Fail,
    /// It sleeps until an instant.
    Sleep,
    /// It waits for a child.
    Suspend,
    /// What it waited for has come.
    Wake,
    /// Its worker hands it back, or is gone.
    Release,
    /// A slice of its work is done, and the next is to begin.
    Continue,
    /// It is parked with a reason.
    Block,
    /// A person pauses it.
    Pause,
    /// A person lets a blocked or paused run go on.
    Resume,
    /// It is cancelled.
    Cancel,
}

use RunEvent::{
    Block, Cancel, Claim, Complete, Continue, Fail, Pause, Release, Resume, Retry, Sleep, Suspend, Wake,
};
use RunState::{Blocked, Cancelled, Completed, Failed, Paused, Queued, Running, Waiting};

/// Every legal transition. What is not here does not happen, and the store's statements refuse it.
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

    /// The state after `event`, or none where the table has no such transition.
    #[must_use]
    pub fn next(self, event: RunEvent) -> Option<Self> {
        TRANSITIONS.iter().find(|(from, by, _)| *from == self && *by == event).map(|(_, _, to)| *to)
    }

    /// Whether nothing ever changes the run again.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        match self {
            Completed | Failed | Cancelled => true,
            Queued | Running | Waiting | Blocked | Paused => false,
        }
    }

    /// The word that stands for the state in SQL, in the CLI and in logs.
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

    /// The state that a word stands for.
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
    fn a_state_is_terminal_where_no_transition_leaves_it() {
        for state in RunState::ALL {
            let is_left = TRANSITIONS.iter().any(|(from, _, _)| *from == state);
            assert_eq!(state.is_terminal(), !is_left, "{state}");
        }
    }

    #[test]
    fn every_state_but_the_first_can_be_reached() {
        for state in RunState::ALL.into_iter().filter(|state| *state != Queued) {
            assert!(TRANSITIONS.iter().any(|(_, _, to)| *to == state), "{state} has no way in");
        }
    }

    #[test]
    fn a_state_and_an_event_lead_to_one_state() {
        for (i, (from, event, _)) in TRANSITIONS.iter().enumerate() {
            let twin = TRANSITIONS[i + 1..].iter().any(|(f, e, _)| f == from && e == event);
            assert!(!twin, "{from} has two ways on {event:?}");
        }
    }

    #[test]
    fn a_state_survives_the_round_trip_through_its_word() {
        assert!(RunState::ALL.into_iter().all(|state| RunState::parse(state.as_str()) == Some(state)));
        assert_eq!(RunState::parse("succeeded"), None);
        let quoted =
            |state: RunState| serde_json::to_string(&state).map(|word| word == format!("\"{state}\""));
        assert!(RunState::ALL.into_iter().all(|state| quoted(state).is_ok_and(|same| same)));
    }

    #[test]
    fn a_run_goes_where_the_table_says_and_nowhere_else() {
        assert_eq!(Running.next(Complete), Some(Completed));
        assert_eq!(Running.next(Retry), Some(Queued));
        assert_eq!((Queued.next(Complete), Completed.next(Claim)), (None, None));
    }
}
