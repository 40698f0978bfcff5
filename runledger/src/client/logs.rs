//! Reads the stored log lines of runs.

use uuid::Uuid;

use crate::client::handle::RunHandle;
use crate::connection::client_error::ClientError;
use crate::connection::db::connection;
use crate::model::json;
use crate::model::payload::{PayloadError, PayloadKind, Place, Sealer};
use crate::model::run::log::Line;
use crate::store::attempt::log::{LogLine, StoredLogLine, logged};

/// The maximum number of lines on a page.
const PAGE: i64 = 1000;

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

impl<T> RunHandle<T> {
    /// Returns up to 1,000 log lines of the bodies of the run, from line number `from`. One query.
    ///
    /// The first line has number 1. Numbers have no gaps and never change, so after line `n`
    /// continue with `n + 1`. Empty if there are no more lines yet, or if the run does not exist.
    /// Workers store log lines only with [`App::keep_logs`](crate::App::keep_logs).
    ///
    /// - A log holds at most 10,000 lines and 4 MiB. Later lines are dropped.
    /// - Workflow code between steps logs again at each replay. Each line has the number of its
    ///   attempt.
    /// - If a process is killed, its last lines are lost.
    ///
    /// # Errors
    /// [`ClientError::Unreadable`], or a database error.
    pub async fn logs(&self, from: u64) -> Result<Vec<LogLine>, ClientError> {
        let stored = logged(&mut *connection(self.pool()?).await?, self.id(), from, PAGE).await?;
        stored.into_iter().map(|line| opened(&self.sealer(), self.id(), line)).collect()
    }
}
