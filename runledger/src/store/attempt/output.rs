//! Output: the lines that bodies and workflows emit.

use std::fmt;
use std::time::SystemTime;

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::checkpoint::{Fence, positions};
use crate::model::payload::Stored;
use crate::model::timestamp::Timestamp;
use crate::store::sql;
use crate::store::write::write;

/// The maximum number of lines of one run. Output is for people who follow a run, and a reader may
/// want all of it.
pub(crate) const MOST_LINES: u32 = 10_000;

/// The maximum size of all lines of one run, as JSON text: 16 MiB.
pub(crate) const MOST_BYTES: u32 = 16 << 20;

/// A line to append.
#[derive(Clone, Debug)]
pub(crate) struct Emitted {
    pub(crate) fence: Fence,
    /// The step that emits the line, a branch of the workflow, or empty for the run itself.
    pub(crate) step_key: String,
    /// The number of the line within this attempt, from 1, counted per step or branch.
    pub(crate) number: u32,
    pub(crate) fingerprint: i64,
    pub(crate) value: Stored,
}

/// The result of appending a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Appended {
    /// The line is stored.
    Yes,
    /// The attempt lost its lease. Nothing was written.
    LeaseLost,
    /// The output of the run is full. Nothing was written.
    Full,
}

/// A line of a run's output. `Debug` does not show the value.
#[derive(Clone)]
#[non_exhaustive]
pub struct OutputLine {
    /// The number of the line in the run's output, from 1, without gaps.
    pub position: u64,
    /// The key of the step that emitted the line; `name/` for a branch of the workflow, empty for
    /// the run itself.
    pub step_key: String,
    /// The value, as JSON text.
    pub value: String,
    /// When the line was written.
    pub emitted_at: SystemTime,
}

impl fmt::Debug for OutputLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutputLine")
            .field("position", &self.position)
            .field("step_key", &self.step_key)
            .field("n_bytes", &self.value.len())
            .finish_non_exhaustive()
    }
}

/// Appends lines, and returns a result for each.
pub(crate) async fn emit(
    connection: &mut PgConnection,
    lines: &[&Emitted],
) -> Result<Vec<Appended>, sqlx::Error> {
    let row = write(sql::EMIT, |append| {
        sqlx::query(append)
            .bind(lines.iter().map(|line| line.fence.run_id).collect::<Vec<_>>())
            .bind(lines.iter().map(|line| line.fence.token).collect::<Vec<_>>())
            .bind(lines.iter().map(|line| line.step_key.as_str()).collect::<Vec<_>>())
            .bind(lines.iter().map(|line| line.number.cast_signed()).collect::<Vec<_>>())
            .bind(lines.iter().map(|line| line.fingerprint).collect::<Vec<_>>())
            .bind(lines.iter().map(|line| line.value.as_str()).collect::<Vec<_>>())
            .bind(i64::from(MOST_LINES))
            .bind(i64::from(MOST_BYTES))
            .fetch_one(connection)
    })
    .await?;
    let held = positions(&row, "held", lines.len())?;
    let beyond = positions(&row, "beyond", lines.len())?;
    let appended = held.into_iter().zip(beyond).map(|line| match line {
        (false, _) => Appended::LeaseLost,
        (true, true) => Appended::Full,
        (true, false) => Appended::Yes,
    });
    Ok(appended.collect())
}

/// A line as it is stored.
#[derive(Debug)]
pub(crate) struct StoredLine {
    pub(crate) position: u64,
    pub(crate) step_key: String,
    pub(crate) number: i32,
    pub(crate) value: Stored,
    pub(crate) emitted_at: SystemTime,
}

/// Returns a page of a run's output, starting at a position.
pub(crate) async fn emitted(
    connection: &mut PgConnection,
    run_id: Uuid,
    from: u64,
    limit: i64,
) -> Result<Vec<StoredLine>, sqlx::Error> {
    let from = i64::try_from(from).unwrap_or(i64::MAX);
    let rows = sqlx::query(sql::EMITTED).bind(run_id).bind(from).bind(limit).fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            Ok(StoredLine {
                position: row.try_get::<i64, _>("position")?.unsigned_abs(),
                step_key: row.try_get("step_key")?,
                number: row.try_get("number")?,
                value: Stored::read(row.try_get("value")?),
                emitted_at: row.try_get::<Timestamp, _>("emitted_at")?.into(),
            })
        })
        .collect()
}
