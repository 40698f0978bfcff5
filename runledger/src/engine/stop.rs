//! Why an attempt does not go on: what ends it, and what it waits for.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::model::failure::Failure;
use crate::model::payload::{PayloadError, Stored};
use crate::model::replay::Divergence;
use crate::model::timestamp::Timestamp;

/// Why an attempt cannot go on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StopReason {
    /// The record and the code disagree.
    Diverged(Divergence),
    /// Another attempt owns the run, or the database refuses its writes for good.
    LeaseLost,
    /// The database refuses a step for good.
    Refused(Failure),
    /// The run is to be cancelled: a step has met the request before this worker was told.
    Cancelled,
    /// A failover has lost what this attempt stands on: a child that it had started, or a signal that it was given. The replay does it again.
    FailedOver,
    /// What a step did could not be taken back: a person decides.
    UndoFailed(Failure),
    /// A payload cannot be sealed or opened: the codec or a key is not there, and a person gives it.
    Sealed(Failure),
    /// The code keeps a step that holds what others need: a person mends the code.
    Unpolled(Failure),
    /// A slice of its work is done: the next begins after a delay, of a workflow with this input.
    Continued {
        /// None: its own.
        input: Option<Stored>,
        delay: Duration,
    },
}

impl StopReason {
    /// Of an attempt whose code cannot read what a step has on record.
    pub(crate) fn unreadable(key: &str, why: String) -> Self {
        Self::Diverged(Divergence::Output { key: key.to_owned(), why })
    }

    /// Of an attempt that needs to store or to read a payload, and cannot.
    pub(crate) fn of_payload(error: &PayloadError) -> Self {
        let failure = error.to_failure();
        if error.is_of_codec() { Self::Sealed(failure) } else { Self::Refused(failure) }
    }
}

/// What a step waits for without working.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Wait {
    /// An instant of the database's clock.
    Until(Timestamp),
    /// The end of another run.
    Child(Uuid),
    /// The end of the last of these runs.
    LastOf(Arc<[Uuid]>),
    /// A signal of this name.
    Signal(String),
}

/// What the executor does with a workflow whose future is pending.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PollVerdict {
    /// Steps work, or the future waits for something of its own.
    Working,
    /// Every step waits for time, for children or for signals: the run can leave this worker. The number tells whether it has moved since an earlier look.
    Waiting(u64, Vec<Wait>),
    /// Recorded results wait for a turn that nothing under way will bring; the number as above.
    Stalled(u64),
    /// It cannot go on.
    Stopped(StopReason),
}
