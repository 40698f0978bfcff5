//! Operations on runs for programs without the code of their jobs.

pub(crate) mod overrides;
pub(crate) mod pin;
pub(crate) mod resource;

use uuid::Uuid;

use crate::client::handle::RunHandle;
use crate::connection::client_error::ClientError;
use crate::connection::db::Db;
use crate::definition::Definition;
use crate::definition::job::Job;
use crate::engine::builtin::CONCLUDE;
use crate::store::operator::cancel::Cancelled;
use crate::store::operator::pause::Paused;
use crate::store::run::inspect::{AttemptInfo, StepInfo};

impl Db {
    /// Returns the attempts of a run and the failed tries of its steps, oldest first. One query.
    ///
    /// Empty if the run does not exist.
    ///
    /// # Errors
    /// A database error.
    pub async fn attempts(&self, run_id: Uuid) -> Result<Vec<AttemptInfo>, ClientError> {
        self.untyped(run_id).attempts().await
    }

    /// Returns the recorded steps of a run, in the order of its code. One query.
    ///
    /// Empty if the run does not exist.
    ///
    /// # Errors
    /// A database error.
    pub async fn steps(&self, run_id: Uuid) -> Result<Vec<StepInfo>, ClientError> {
        self.untyped(run_id).steps().await
    }

    /// Cancels a run and all its live descendants, as
    /// [`RunHandle::cancel`](crate::RunHandle::cancel) does.
    ///
    /// # Errors
    /// [`ClientError::NoSuchRun`], or a database error.
    ///
    /// # Cost
    /// As for [`RunHandle::cancel`](crate::RunHandle::cancel).
    ///
    /// # Cancel safety
    /// As for [`RunHandle::cancel`](crate::RunHandle::cancel): a dropped call may have cancelled a
    /// part. Repeating it is safe.
    pub async fn cancel(&self, run_id: Uuid, reason: &str) -> Result<Cancelled, ClientError> {
        self.untyped(run_id).cancel(reason).await
    }

    /// Pauses a run until you resume it, as [`RunHandle::pause`](crate::RunHandle::pause) does.
    ///
    /// # Errors
    /// [`ClientError::WrongState`], [`NotPausable`](ClientError::NotPausable),
    /// [`NoSuchRun`](ClientError::NoSuchRun), or a database error.
    ///
    /// # Cost
    /// As for [`RunHandle::pause`](crate::RunHandle::pause).
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may still pause the run. Repeating it is safe.
    pub async fn pause(&self, run_id: Uuid, reason: &str) -> Result<Paused, ClientError> {
        self.untyped(run_id).pause(reason).await
    }

    /// Resumes a paused or blocked run, as [`RunHandle::resume`](crate::RunHandle::resume) does.
    ///
    /// # Errors
    /// [`ClientError::WrongState`] if the run is neither paused nor blocked and has no pause
    /// request, [`NoSuchRun`](ClientError::NoSuchRun), or a database error.
    ///
    /// # Cost
    /// As for [`RunHandle::resume`](crate::RunHandle::resume).
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may still resume the run. A repetition is then refused.
    pub async fn resume(&self, run_id: Uuid) -> Result<(), ClientError> {
        self.untyped(run_id).resume().await
    }

    /// Returns a handle without a result type, for methods that do not read the result.
    pub(crate) fn untyped(&self, run_id: Uuid) -> RunHandle<Untyped> {
        RunHandle::new(run_id, false, Some(self.home()))
    }
}

/// The job of a run about which nothing is known.
#[derive(Debug)]
pub(crate) struct Untyped;

impl Job for Untyped {
    type Output = ();
    const DEFINITION: &'static Definition = &CONCLUDE;
}
