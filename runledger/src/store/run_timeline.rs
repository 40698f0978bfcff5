//! What has happened to a run, put together of its rows: nothing is written for it.

use std::time::SystemTime;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::sql;
use crate::model::timestamp::Timestamp;

/// Something that has happened to a run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimelineEntry {
    /// When, by the database's clock.
    pub at: SystemTime,
    /// What.
    pub what: TimelineEvent,
    /// The step that it concerns.
    pub step_key: Option<String>,
    /// The attempt of the run, or the try of the step.
    pub attempt: Option<u32>,
    /// The worker that did it.
    pub worker_id: Option<i64>,
    /// The name of a signal, who decided about a gate, the reason of a request, the id of a child or of another go, the version that it was moved to, how often it has
    /// begun anew.
    pub detail: Option<String>,
}

/// What can happen to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TimelineEvent {
    /// It was created.
    Created,
    /// A worker claimed it.
    AttemptBegan,
    /// An attempt failed, and another followed or was to follow.
    AttemptFailed,
    /// A step recorded what it gave.
    StepCompleted,
    /// A step recorded its failure.
    StepFailed,
    /// A try of a step failed.
    TryFailed,
    /// It started a child, or got a node.
    ChildCreated,
    /// A signal was sent to it.
    SignalSent,
    /// Somebody decided about it: it is a gate.
    Decided,
    /// It began anew, with another input; of several times the last.
    Continued,
    /// It was moved to another version of its code.
    Pinned,
    /// Somebody asks for its cancellation, which has not taken place.
    CancelRequested,
    /// Somebody asks for its pause, which has not taken place.
    PauseRequested,
    /// What its steps did is taken back from here on.
    CompensationStarted,
    /// Another go at it was made.
    Rerun,
    /// It waits, and has since then.
    Waiting,
    /// It is blocked, and has been since then.
    Blocked,
    /// It is paused, and has been since then.
    Paused,
    /// It completed.
    Completed,
    /// It failed for good.
    Failed,
    /// It was cancelled.
    Cancelled,
}

const EVENTS: [TimelineEvent; 21] = [
    TimelineEvent::Created,
    TimelineEvent::AttemptBegan,
    TimelineEvent::AttemptFailed,
    TimelineEvent::StepCompleted,
    TimelineEvent::StepFailed,
    TimelineEvent::TryFailed,
    TimelineEvent::ChildCreated,
    TimelineEvent::SignalSent,
    TimelineEvent::Decided,
    TimelineEvent::Continued,
    TimelineEvent::Pinned,
    TimelineEvent::CancelRequested,
    TimelineEvent::PauseRequested,
    TimelineEvent::CompensationStarted,
    TimelineEvent::Rerun,
    TimelineEvent::Waiting,
    TimelineEvent::Blocked,
    TimelineEvent::Paused,
    TimelineEvent::Completed,
    TimelineEvent::Failed,
    TimelineEvent::Cancelled,
];

impl TimelineEvent {
    /// Its word, such as `attempt_began`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::AttemptBegan => "attempt_began",
            Self::AttemptFailed => "attempt_failed",
            Self::StepCompleted => "step_completed",
            Self::StepFailed => "step_failed",
            Self::TryFailed => "try_failed",
            Self::ChildCreated => "child_created",
            Self::SignalSent => "signal_sent",
            Self::Decided => "decided",
            Self::Continued => "continued",
            Self::Pinned => "pinned",
            Self::CancelRequested => "cancel_requested",
            Self::PauseRequested => "pause_requested",
            Self::CompensationStarted => "undo_began",
            Self::Rerun => "made_of_it",
            Self::Waiting => "waiting",
            Self::Blocked => "blocked",
            Self::Paused => "paused",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What has happened to a run, oldest first, up to so much.
pub(crate) async fn happened(
    connection: &mut PgConnection,
    run_id: Uuid,
    limit: i64,
) -> Result<Vec<TimelineEntry>, sqlx::Error> {
    let rows = sqlx::query(sql::HAPPENED).bind(run_id).bind(limit).fetch_all(connection).await?;
    rows.iter().map(entry).collect()
}

fn entry(row: &PgRow) -> Result<TimelineEntry, sqlx::Error> {
    let word: &str = row.try_get("what")?;
    let what = EVENTS.into_iter().find(|what| what.as_str() == word);
    Ok(TimelineEntry {
        at: row.try_get::<Timestamp, _>("at")?.into(),
        what: what.ok_or_else(|| sqlx::Error::Decode(format!("unknown word `{word}`").into()))?,
        step_key: row.try_get("step_key")?,
        attempt: row.try_get::<Option<i32>, _>("attempt")?.map(i32::unsigned_abs),
        worker_id: row.try_get("worker_id")?,
        detail: row.try_get("detail")?,
    })
}
