//! A failure as it is recorded: what went wrong, with its chain, readable long after the process is gone.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why an attempt or a step did not give an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FailureKind {
    /// The function returned an error.
    Error,
    /// The function panicked.
    Panic,
    /// The function did not end within its `timeout`.
    Timeout,
    /// The stored arguments, or a recorded output, do not fit the code's types.
    Decode,
    /// The output cannot be stored.
    Encode,
    /// The run was cancelled.
    Cancelled,
    /// The worker's process ended in the middle of the attempt.
    Crash,
    /// The recorded steps and the code disagree.
    Diverged,
    /// The program does not provide what the job asks for.
    Setup,
}

/// A recorded failure: its kind, its message, and the messages of its causes, outermost first.
///
/// Payloads are never part of it unless the job's own error message has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What kind of failure it is.
    pub kind: FailureKind,
    /// The outermost message.
    pub message: String,
    /// The messages of the causes, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    /// Where a panic happened: `file:line:column`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
}

impl Failure {
    /// A failure with a message and no causes.
    #[must_use]
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), causes: Vec::new(), location: None }
    }

    /// A failure from an error and the chain of its sources.
    #[must_use]
    pub fn from_chain(kind: FailureKind, error: &(dyn std::error::Error + 'static)) -> Self {
        let mut messages = vec![error.to_string()];
        let mut source = error.source();
        while let Some(cause) = source {
            // Wrappers that only classify repeat the message of what they wrap.
            if messages.last().is_none_or(|last| *last != cause.to_string()) {
                messages.push(cause.to_string());
            }
            source = cause.source();
        }
        Self { kind, message: messages.remove(0), causes: messages, location: None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        for cause in &self.causes {
            write!(f, ": {cause}")?;
        }
        match &self.location {
            Some(location) => write!(f, " (at {location})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

/// What a failure asks for, beside the job's own policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Retry {
    /// As the job's policy says.
    #[default]
    Policy,
    /// After this delay, as long as the policy has attempts left.
    After(Duration),
    /// Never.
    Never,
}
