//! What the failure hook of an app is told of a run that has failed.

use std::fmt;

use uuid::Uuid;

use super::error::{Error, Result};
use super::job::Payload;
use crate::model::failure::Failure;
use crate::model::json;

/// A run that has failed for good, as the hook of [`App::on_failure`](crate::App::on_failure) is told of it.
///
/// Its `Debug` shows neither the input nor the reason: both may be what the database has sealed.
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
    /// Its id.
    #[must_use]
    pub fn run_id(&self) -> Uuid {
        self.run_id
    }

    /// The name of its job.
    #[must_use]
    pub fn job(&self) -> &str {
        &self.job
    }

    /// The version of its job's code that it is pinned to.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The tenant it belongs to; empty for none.
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// What it failed with.
    #[must_use]
    pub fn failure(&self) -> &Failure {
        &self.failure
    }

    /// How many attempts were spent.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Its input: the arguments by their names, as any type that takes these fields.
    ///
    /// # Errors
    /// The type does not fit.
    pub fn input<T: Payload>(&self) -> Result<T> {
        json::decode(&self.input).map_err(Error::terminal)
    }

    /// What its body said last of how far it was ([`Context::progress`](crate::Context::progress)); none where it has said nothing, or the database did
    /// not tell.
    ///
    /// # Errors
    /// The type does not fit.
    pub fn last_progress<T: Payload>(&self) -> Result<Option<T>> {
        self.progress.as_deref().map(json::decode).transpose().map_err(Error::terminal)
    }
}
