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
    UndoBegan,
    /// Another go at it was made.
    MadeOfIt,
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

const WORDS: [(&str, TimelineEvent); 21] = [
    ("created", TimelineEvent::Created),
    ("attempt_began", TimelineEvent::AttemptBegan),
    ("attempt_failed", TimelineEvent::AttemptFailed),
    ("step_completed", TimelineEvent::StepCompleted),
    ("step_failed", TimelineEvent::StepFailed),
    ("try_failed", TimelineEvent::TryFailed),
    ("child_created", TimelineEvent::ChildCreated),
    ("signal_sent", TimelineEvent::SignalSent),
    ("decided", TimelineEvent::Decided),
    ("continued", TimelineEvent::Continued),
    ("pinned", TimelineEvent::Pinned),
    ("cancel_requested", TimelineEvent::CancelRequested),
    ("pause_requested", TimelineEvent::PauseRequested),
    ("undo_began", TimelineEvent::UndoBegan),
    ("made_of_it", TimelineEvent::MadeOfIt),
    ("waiting", TimelineEvent::Waiting),
    ("blocked", TimelineEvent::Blocked),
    ("paused", TimelineEvent::Paused),
    ("completed", TimelineEvent::Completed),
    ("failed", TimelineEvent::Failed),
    ("cancelled", TimelineEvent::Cancelled),
];

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
    let what = WORDS.iter().find_map(|(known, what)| (*known == word).then_some(*what));
    Ok(TimelineEntry {
        at: row.try_get::<Timestamp, _>("at")?.into(),
        what: what.ok_or_else(|| sqlx::Error::Decode(format!("unknown word `{word}`").into()))?,
        step_key: row.try_get("step_key")?,
        attempt: row.try_get::<Option<i32>, _>("attempt")?.map(i32::unsigned_abs),
        worker_id: row.try_get("worker_id")?,
        detail: row.try_get("detail")?,
    })
}
