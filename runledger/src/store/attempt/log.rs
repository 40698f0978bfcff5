//! Logs: the `tracing` events of the bodies of runs, if a worker stores them.

use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::model::payload::Stored;
use crate::model::timestamp::Timestamp;
use crate::store::sql;

/// A line of a run's log. `Debug` does not show the message or the fields.
#[derive(Clone)]
#[non_exhaustive]
pub struct LogLine {
    /// The number of the line in the run's log, from 1, without gaps.
    pub number: u64,
    /// The step whose body logged the line; empty for the run itself.
    pub step_key: String,
    /// The attempt of the run.
    pub attempt: u32,
    /// `ERROR`, `WARN`, `INFO`, `DEBUG` or `TRACE`.
    pub level: String,
    /// Where in the program the line was logged: a module, by default.
    pub target: String,
    /// The message.
    pub message: String,
    /// The fields of the event, as text.
    pub fields: BTreeMap<String, String>,
    /// When the line was logged, by the database's clock. Ignores the time that the line took to
    /// reach the database.
    pub logged_at: SystemTime,
}

impl fmt::Debug for LogLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogLine")
            .field("number", &self.number)
            .field("step_key", &self.step_key)
            .field("level", &self.level)
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

/// A line as it is stored.
#[derive(Debug)]
pub(crate) struct StoredLogLine {
    pub(crate) number: u64,
    pub(crate) step_key: String,
    pub(crate) attempt: u32,
    pub(crate) level: String,
    pub(crate) target: String,
    pub(crate) line: Stored,
    pub(crate) logged_at: SystemTime,
}

/// Returns a page of a run's log, starting at a line number.
pub(crate) async fn logged(
    connection: &mut PgConnection,
    run_id: Uuid,
    from: u64,
    limit: i64,
) -> Result<Vec<StoredLogLine>, sqlx::Error> {
    let from = i64::try_from(from).unwrap_or(i64::MAX);
    let rows = sqlx::query(sql::LOGGED).bind(run_id).bind(from).bind(limit).fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            Ok(StoredLogLine {
                number: row.try_get::<i64, _>("number")?.unsigned_abs(),
                step_key: row.try_get("step_key")?,
                attempt: row.try_get::<i32, _>("attempt")?.unsigned_abs(),
                level: row.try_get("level")?,
                target: row.try_get("target")?,
                line: Stored::read(row.try_get("line")?),
                logged_at: row.try_get::<Timestamp, _>("logged_at")?.into(),
            })
        })
        .collect()
}

#[cfg(feature = "logs")]
pub(crate) use keep::{Fate, NewLogLine, keep};

#[cfg(feature = "logs")]
mod keep {
    use tokio::time::Instant;

    use super::{PgConnection, Stored, Uuid};
    use crate::store::attempt::checkpoint::positions;
    use crate::store::sql;
    use crate::store::write::write;

    /// The maximum number of lines of one run.
    const MOST_LINES: i64 = 10_000;

    /// The maximum size of all lines of one run, as JSON text: 4 MiB.
    const MOST_BYTES: i64 = 4 << 20;

    /// A line to store.
    #[derive(Debug)]
    pub(crate) struct NewLogLine {
        pub(crate) run_id: Uuid,
        pub(crate) step_key: String,
        pub(crate) attempt: u32,
        pub(crate) level: &'static str,
        pub(crate) target: String,
        pub(crate) line: Stored,
        /// By this process's own clock.
        pub(crate) at: Instant,
    }

    /// The result of storing a line.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Fate {
        Kept,
        /// The log of the run is full.
        Beyond,
        /// Another worker has stored a line of the same run under this number. Send the line again.
        Met,
    }

    /// Stores lines, and returns a result for each.
    pub(crate) async fn keep(
        connection: &mut PgConnection,
        lines: &[NewLogLine],
    ) -> Result<Vec<Fate>, sqlx::Error> {
        let now = Instant::now();
        let micros_ago = |at: Instant| i64::try_from(now.duration_since(at).as_micros()).unwrap_or(i64::MAX);
        let row = write(sql::LOG, |keep| {
            sqlx::query(keep)
                .bind(lines.iter().map(|line| line.run_id).collect::<Vec<_>>())
                .bind(lines.iter().map(|line| line.step_key.as_str()).collect::<Vec<_>>())
                .bind(lines.iter().map(|line| line.attempt.cast_signed()).collect::<Vec<_>>())
                .bind(lines.iter().map(|line| line.level).collect::<Vec<_>>())
                .bind(lines.iter().map(|line| line.target.as_str()).collect::<Vec<_>>())
                .bind(lines.iter().map(|line| line.line.as_str()).collect::<Vec<_>>())
                .bind(lines.iter().map(|line| micros_ago(line.at)).collect::<Vec<_>>())
                .bind(MOST_LINES)
                .bind(MOST_BYTES)
                .fetch_one(connection)
        })
        .await?;
        let kept = positions(&row, "kept", lines.len())?;
        let beyond = positions(&row, "beyond", lines.len())?;
        let fate = |(kept, beyond)| match (kept, beyond) {
            (true, _) => Fate::Kept,
            (false, true) => Fate::Beyond,
            (false, false) => Fate::Met,
        };
        Ok(kept.into_iter().zip(beyond).map(fate).collect())
    }
}
