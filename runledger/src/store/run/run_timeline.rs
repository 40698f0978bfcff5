//! The timeline of a run, computed from its rows. The engine writes nothing for it.

use std::time::SystemTime;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::model::timestamp::Timestamp;
use crate::store::sql;

/// An event of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimelineEntry {
    /// When it happened, by the database's clock.
    pub at: SystemTime,
    /// What happened.
    pub what: TimelineEvent,
    /// The step that the event concerns.
    pub step_key: Option<String>,
    /// The attempt of the run, or of the step.
    pub attempt: Option<u32>,
    /// The worker that caused the event.
    pub worker_id: Option<i64>,
    /// Depends on the event: the name of a signal, who decided a gate, or the reason of a request.
    /// For a new child or run, its id. For a move, the job name with its version, such as
    /// `checkout@2`. For a continue-as-new, how often the run has continued as new.
    pub detail: Option<String>,
}

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TimelineEvent {
    /// The run was created.
    Created,
    /// A worker claimed the run.
    AttemptBegan,
    /// An attempt failed, and another one followed or was due to follow.
    AttemptFailed,
    /// A step recorded its output.
    StepCompleted,
    /// A step recorded its failure.
    StepFailed,
    /// An attempt of a step failed.
    TryFailed,
    /// The run started a child. For a graph: a node was created.
    ChildCreated,
    /// A signal was sent to the run.
    SignalSent,
    /// A gate was decided.
    Decided,
    /// The run continued as new, with another input. Only the last time is listed.
    Continued,
    /// The run was moved to another version of its code.
    Pinned,
    /// A cancel was requested, and has not taken effect.
    CancelRequested,
    /// A pause was requested, and has not taken effect.
    PauseRequested,
    /// The compensation of the run's steps started.
    CompensationStarted,
    /// A new run was created from this run.
    Rerun,
    /// The run has been waiting since then.
    Waiting,
    /// The run has been blocked since then.
    Blocked,
    /// The run has been paused since then.
    Paused,
    /// The run completed.
    Completed,
    /// The run failed; no attempt follows.
    Failed,
    /// The run was cancelled.
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
    /// The name of the event, such as `attempt_began`.
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
            Self::CompensationStarted => "compensation_started",
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

/// Returns at most `limit` events of a run, oldest first.
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
