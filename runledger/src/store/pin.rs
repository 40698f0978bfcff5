//! Pins: the version of its code that a run is bound to, and what a person does to it.

use std::time::SystemTime;

use sqlx::{Connection, PgConnection, Row};
use uuid::Uuid;

use super::session::BEGIN_RESTLESS;
use super::write::{commit, write};
use super::{inspect, sql};
use crate::model::name::is_reserved;
use crate::model::payload::Sealer;
use crate::model::state::RunState;
use crate::model::timestamp::Timestamp;
use crate::model::version::{parts, stored_name};

/// How often a run is tried to be moved that a claim or a settlement has met between the look at it and the write.
const TRIES: u32 = 5;

/// One move of a run to another version of its code.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinInfo {
    /// The version before.
    pub from_version: u32,
    /// The version since.
    pub version: u32,
    /// When it was moved.
    pub pinned_at: SystemTime,
}

/// What became of a run that was to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pinned {
    /// It is of that version now.
    Moved,
    /// It was before.
    Already,
    /// Its code is the engine's own.
    OfEngine,
    /// It cannot be in this state.
    Refused(RunState),
}

/// Moves a run to another version of its code. None where there is no such run.
pub(crate) async fn pin(
    connection: &mut PgConnection,
    run_id: Uuid,
    version: u32,
) -> Result<Option<Pinned>, sqlx::Error> {
    for _ in 0..TRIES {
        let mut tx = connection.begin_with(BEGIN_RESTLESS).await?;
        sqlx::query(sql::LOCK_RUNS).bind(vec![run_id]).execute(&mut *tx).await?;
        // What it may have failed with is not looked at.
        let Some(run) = inspect::run(&mut tx, run_id, &Sealer::default()).await? else { return Ok(None) };
        if is_reserved(&run.job) {
            return Ok(Some(Pinned::OfEngine));
        }
        if run.state.is_terminal() || run.state == RunState::Running {
            return Ok(Some(Pinned::Refused(run.state)));
        }
        if run.version == version {
            return Ok(Some(Pinned::Already));
        }
        let moved = write(sql::PIN, |pin| {
            sqlx::query(pin).bind(run_id).bind(stored_name(&run.job, version)).fetch_optional(&mut *tx)
        })
        .await?;
        commit("pinning", tx.commit()).await?;
        if moved.is_some() {
            return Ok(Some(Pinned::Moved));
        }
    }
    Ok(Some(Pinned::Refused(RunState::Running)))
}

/// How a run was moved, the first time first.
pub(crate) async fn pins(connection: &mut PgConnection, run_id: Uuid) -> Result<Vec<PinInfo>, sqlx::Error> {
    let rows = sqlx::query(sql::PINS).bind(run_id).fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            Ok(PinInfo {
                from_version: parts(row.try_get("from_job")?).1,
                version: parts(row.try_get("to_job")?).1,
                pinned_at: row.try_get::<Timestamp, _>("pinned_at")?.into(),
            })
        })
        .collect()
}
