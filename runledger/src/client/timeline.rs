//! The timeline of a run.

use crate::client::handle::RunHandle;
use crate::connection::client_error::ClientError;
use crate::connection::db::connection;
use crate::store::run::run_timeline::{TimelineEntry, happened};

/// The maximum number of entries.
const MOST: i64 = 10_000;

impl<T> RunHandle<T> {
    /// Returns the events of the run, oldest first. One query.
    ///
    /// The timeline contains the creation, the attempts with their workers, steps, signals,
    /// children, decisions, requests, and the current state or the outcome. It is computed from
    /// rows that the run has anyway, so it costs no extra writes. Data that a later row replaced,
    /// such as an earlier wait, is missing. It has at most 10,000 entries, and is empty if the run
    /// does not exist.
    ///
    /// # Errors
    /// A database error.
    pub async fn timeline(&self) -> Result<Vec<TimelineEntry>, ClientError> {
        Ok(happened(&mut *connection(self.pool()?).await?, self.id(), MOST).await?)
    }
}
