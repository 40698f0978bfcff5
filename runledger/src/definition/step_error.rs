//! The error of a step.

use thiserror::Error;

use crate::model::run::failure::Failure;

/// Why a step has no output: the recorded failure of its last attempt. Replay returns the same
/// error.
///
/// Its text includes the reason and all causes, so [`source`](std::error::Error::source) returns
/// `None`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("step `{key}` failed: {failure}")]
pub struct StepError {
    key: String,
    failure: Failure,
}

impl StepError {
    pub(crate) fn new(key: impl Into<String>, failure: Failure) -> Self {
        Self { key: key.into(), failure }
    }

    /// The key of the step.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The error text without the failure.
    pub(crate) fn head(&self) -> String {
        format!("step `{}` failed", self.key)
    }

    /// The recorded failure.
    #[must_use]
    pub fn failure(&self) -> &Failure {
        &self.failure
    }
}
