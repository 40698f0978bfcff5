//! The argument of an app's failure hook.

use std::fmt;

use uuid::Uuid;

use super::error::{Error, Result};
use super::job::Payload;
use crate::model::json;
use crate::model::run::failure::Failure;

/// A run that has failed for good. The hook of [`App::on_failure`](crate::App::on_failure) receives
/// it.
///
/// `Debug` omits the input and the failure: the database may store them encrypted.
#[derive(Clone)]
pub struct FailedRun {
    pub(crate) run_id: Uuid,
    pub(crate) job: String,
    pub(crate) version: u32,
    pub(crate) tenant: String,
    pub(crate) input: String,
    pub(crate) failure: Failure,
    pub(crate) attempts: u32,
    pub(crate) progress: Option<String>,
}

impl fmt::Debug for FailedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailedRun")
            .field("run_id", &self.run_id)
            .field("job", &self.job)
            .field("kind", &self.failure.kind)
            .field("attempts", &self.attempts)
            .finish_non_exhaustive()
    }
}

impl FailedRun {
    /// The id of the run.
    #[must_use]
    pub fn run_id(&self) -> Uuid {
        self.run_id
    }

    /// The name of the job.
    #[must_use]
    pub fn job(&self) -> &str {
        &self.job
    }

    /// The version of the job's code that the run is pinned to.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The tenant; empty for none.
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// The failure of the run.
    #[must_use]
    pub fn failure(&self) -> &Failure {
        &self.failure
    }

    /// The number of attempts.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The input: the arguments by name, decoded into any type with these fields.
    ///
    /// # Errors
    /// The input does not fit the type.
    pub fn input<T: Payload>(&self) -> Result<T> {
        json::decode(&self.input).map_err(Error::terminal)
    }

    /// The last progress that the body reported ([`Context::progress`](crate::Context::progress)).
    /// `None` if it reported none, or if the worker could not read it.
    ///
    /// # Errors
    /// The progress does not fit the type.
    pub fn last_progress<T: Payload>(&self) -> Result<Option<T>> {
        self.progress.as_deref().map(json::decode).transpose().map_err(Error::terminal)
    }
}
