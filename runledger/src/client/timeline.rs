//! What has happened to a run.

use uuid::Uuid;

use super::handle::RunHandle;
use crate::connection::client_error::ClientError;
use crate::connection::db::{Db, connection};
use crate::definition::job::Job;
use crate::store::run_timeline::{TimelineEntry, happened};

/// How much is given at most.
const MOST: i64 = 10_000;

impl Db {
    /// What has happened to a run, oldest first: its creation, its attempts with their workers, steps, signals, children, decisions, requests, and where it stands or how it ended. It is put
    /// together of the rows that the run has anyway, so nothing is written for it; what a row replaces (an earlier wait) is not told. 10,000 entries at most; empty where there is no
    /// such run. One query.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn timeline(&self, run_id: Uuid) -> Result<Vec<TimelineEntry>, ClientError> {
        self.untyped(run_id).timeline().await
    }
}

impl<J: Job> RunHandle<J> {
    /// What has happened to this run, as [`Db::timeline`].
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn timeline(&self) -> Result<Vec<TimelineEntry>, ClientError> {
        Ok(happened(&mut *connection(self.pool()?).await?, self.id(), MOST).await?)
    }
}
