//! What the bodies of runs have logged, read again.

use uuid::Uuid;

use super::handle::RunHandle;
use crate::connection::client_error::ClientError;
use crate::connection::db::{Db, connection};
use crate::definition::job::Job;
use crate::model::json;
use crate::model::log::Line;
use crate::model::payload::{PayloadError, PayloadKind, Place, Sealer};
use crate::store::log::{LogLine, StoredLogLine, logged};

/// The most lines of a page.
const PAGE: i64 = 1000;

impl Db {
    /// What the bodies of a run have logged, where its workers [keep that](crate::App::keep_logs), from this number on, the first being 1: up to 1,000 lines. Numbers have no gaps
    /// and never change, so whoever has read up to `n` goes on at `n + 1`. Empty where there is no more yet, and where there is no such run. One query.
    ///
    /// A log has 10,000 lines and 4 MiB at most: what is said later is not kept. What a workflow's code says between its steps it says again at each replay; the attempt is with each
    /// line. The last lines of a process that is killed are lost.
    ///
    /// # Errors
    /// [`ClientError::Unreadable`], or a failure of the database.
    pub async fn logs(&self, run_id: Uuid, from: u64) -> Result<Vec<LogLine>, ClientError> {
        self.untyped(run_id).logs(from).await
    }
}

fn opened(sealer: &Sealer, run_id: Uuid, stored: StoredLogLine) -> Result<LogLine, ClientError> {
    let StoredLogLine { number, step_key, attempt, level, target, line, logged_at } = stored;
    let place = Place::new(run_id, PayloadKind::Log, &step_key);
    let unreadable = |source: PayloadError| ClientError::Unreadable { run_id, source };
    let line = sealer.open(&place, line).map_err(unreadable)?;
    let line: Line = json::decode(&line).unwrap_or_else(|_| Line { message: line, ..Line::default() });
    Ok(LogLine {
        number,
        step_key,
        attempt,
        level,
        target,
        message: line.message,
        fields: line.fields,
        logged_at,
    })
}

impl<J: Job> RunHandle<J> {
    /// What the bodies of this run have logged, as [`Db::logs`].
    ///
    /// # Errors
    /// As [`Db::logs`].
    pub async fn logs(&self, from: u64) -> Result<Vec<LogLine>, ClientError> {
        let stored = logged(&mut *connection(self.pool()?).await?, self.id(), from, PAGE).await?;
        stored.into_iter().map(|line| opened(&self.sealer(), self.id(), line)).collect()
    }
}
