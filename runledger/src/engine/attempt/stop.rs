//! The reasons why an attempt stops, and the events that a step waits for.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::model::payload::{PayloadError, Stored};
use crate::model::replay::Divergence;
use crate::model::run::failure::Failure;
use crate::model::timestamp::Timestamp;

/// Why an attempt must stop.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StopReason {
    /// The history and the code differ.
    Diverged(Divergence),
    /// Another attempt owns the run, or the database refuses its writes for good.
    LeaseLost,
    /// The database refuses a step for good.
    Refused(Failure),
    /// The run has a cancel request. A step found it before this worker received it.
    Cancelled,
    /// A failover lost a child that this attempt had started, or a signal that it had received. The
    /// next replay does it again.
    FailedOver,
    /// A compensation failed. A person decides.
    CompensationFailed(Failure),
    /// A payload cannot be encrypted or decrypted. An operator must provide the codec or the key.
    Sealed(Failure),
    /// The code does not poll a step that holds a resource others need. A person must fix the code.
    Unpolled(Failure),
    /// This slice of the work is done. The next slice begins after a delay.
    Continued {
        /// The input of the next slice, for a workflow. `None` keeps the input.
        input: Option<Stored>,
        delay: Duration,
    },
}

impl StopReason {
    /// The reason for an attempt whose code cannot decode the recorded output of a step.
    pub(crate) fn unreadable(key: &str, why: String) -> Self {
        Self::Diverged(Divergence::Output { key: key.to_owned(), why })
    }

    /// The reason for an attempt that must store or read a payload and cannot.
    pub(crate) fn of_payload(error: &PayloadError) -> Self {
        let failure = error.to_failure();
        if error.is_of_codec() { Self::Sealed(failure) } else { Self::Refused(failure) }
    }
}

/// The event that an idle step waits for.
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

/// The executor's decision about a workflow whose future is pending.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PollVerdict {
    /// Steps work, or the future waits for something of its own.
    Working,
    /// Every step waits for time, children or signals, so the run may be suspended. The number
    /// changes when the run makes progress.
    Waiting(u64, Vec<Wait>),
    /// Recorded results wait for a turn that no active step will bring. The number is as above.
    Stalled(u64),
    /// The attempt must stop.
    Stopped(StopReason),
}
