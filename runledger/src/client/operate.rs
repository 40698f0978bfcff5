//! What operators do to a run, and see of it, in programs that do not have the code of its job.

use uuid::Uuid;

use super::handle::RunHandle;
use crate::connection::client_error::ClientError;
use crate::connection::db::Db;
use crate::definition::Definition;
use crate::definition::job::Job;
use crate::engine::builtin::CONCLUDE;
use crate::store::cancel::Cancelled;
use crate::store::inspect::{AttemptInfo, StepInfo};
use crate::store::pause::Paused;

impl Db {
    /// The attempts of a run, and the failed tries of its steps, oldest first; none where there is no such run. One query.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn attempts(&self, run_id: Uuid) -> Result<Vec<AttemptInfo>, ClientError> {
        self.untyped(run_id).attempts().await
    }

    /// The recorded steps of a run, in the order of its code; none where there is no such run. One query.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn steps(&self, run_id: Uuid) -> Result<Vec<StepInfo>, ClientError> {
        self.untyped(run_id).steps().await
    }

    /// Cancels a run, and everything that goes on below it, as [`RunHandle::cancel`](crate::RunHandle::cancel) does, at its cost.
    ///
    /// # Errors
    /// [`ClientError::NoSuchRun`], or a failure of the database.
    ///
    /// # Cancel safety
    /// As that of [`RunHandle::cancel`](crate::RunHandle::cancel): a dropped future may have cancelled a part, and can be repeated.
    pub async fn cancel(&self, run_id: Uuid, reason: &str) -> Result<Cancelled, ClientError> {
        self.untyped(run_id).cancel(reason).await
    }

    /// Pauses a run until it is resumed, as [`RunHandle::pause`](crate::RunHandle::pause) does, at its cost.
    ///
    /// # Errors
    /// [`ClientError::WrongState`], [`NotPausable`](ClientError::NotPausable), [`NoSuchRun`](ClientError::NoSuchRun), or a failure of the database.
    ///
    /// # Cancel safety
    /// A dropped future may or may not have paused the run. It can be repeated.
    pub async fn pause(&self, run_id: Uuid, reason: &str) -> Result<Paused, ClientError> {
        self.untyped(run_id).pause(reason).await
    }

    /// Lets a paused or blocked run go on, as [`RunHandle::resume`](crate::RunHandle::resume) does, at its cost.
    ///
    /// # Errors
    /// [`ClientError::WrongState`] where the run is neither, [`NoSuchRun`](ClientError::NoSuchRun), or a failure of the database.
    ///
    /// # Cancel safety
    /// A dropped future may or may not have resumed the run. Where it has, a repetition is refused.
    pub async fn resume(&self, run_id: Uuid) -> Result<(), ClientError> {
        self.untyped(run_id).resume().await
    }

    /// A handle whose type says nothing of the run: nothing that is asked of it here reads a result.
    pub(crate) fn untyped(&self, run_id: Uuid) -> RunHandle<Untyped> {
        RunHandle::new(run_id, false, Some(self.home()))
    }
}

/// The job of a run of which nothing is known.
#[derive(Debug)]
pub(crate) struct Untyped;

impl Job for Untyped {
    type Output = ();
    const DEFINITION: &'static Definition = &CONCLUDE;
}
