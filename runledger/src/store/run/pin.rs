//! Pins: the version of its code that a run is bound to, and moves to another version.

use std::time::SystemTime;

use sqlx::{Connection, PgConnection, Row};
use uuid::Uuid;

use super::inspect;
use crate::model::payload::Sealer;
use crate::model::run::name::is_reserved;
use crate::model::run::state::RunState;
use crate::model::run::version::{parts, stored_name};
use crate::model::timestamp::Timestamp;
use crate::store::session::BEGIN_RESTLESS;
use crate::store::sql;
use crate::store::write::{commit, write};

/// The maximum number of tries to move a run. A claim or a settlement may change the run between a
/// try's read and its write.
const TRIES: u32 = 5;

/// One move of a run to another version of its code.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinInfo {
    /// The version before the move.
    pub from_version: u32,
    /// The version after the move.
    pub version: u32,
    /// When the run was moved.
    pub pinned_at: SystemTime,
}

/// The result of moving a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pinned {
    /// The run has this version now.
    Moved,
    /// The run already had this version.
    Already,
    /// The job is part of the engine.
    OfEngine,
    /// A run in this state cannot be moved.
    Refused(RunState),
}

/// Moves a run to another version of its code. `None` if the run does not exist.
pub(crate) async fn pin(
    connection: &mut PgConnection,
    run_id: Uuid,
    version: u32,
) -> Result<Option<Pinned>, sqlx::Error> {
    for _ in 0..TRIES {
        let mut tx = connection.begin_with(BEGIN_RESTLESS).await?;
        sqlx::query(sql::LOCK_RUNS).bind(vec![run_id]).execute(&mut *tx).await?;
        // The error of the run is not used, so no codec is needed.
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

/// Returns the moves of a run, oldest first.
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
