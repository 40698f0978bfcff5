//! Pause and resume: what a person does to a run that may go on later.

use sqlx::{Connection, PgConnection, Row};
use uuid::Uuid;

use super::session::BEGIN_RESTLESS;
use super::write::{commit, write};
use super::{inspect, sql};
use crate::model::state::RunState;

/// What became of a request to pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Paused {
    /// The run is paused.
    Now,
    /// A worker holds the run; it leaves it at its next await.
    Requested,
}

/// How often a resumption is tried that a settlement has met between its look and its write.
const TRIES: u32 = 5;

/// Pauses a run. The state where it cannot be; none where there is no such run.
pub(crate) async fn pause(
    connection: &mut PgConnection,
    run_id: Uuid,
    reason: &str,
) -> Result<Option<Result<Paused, RunState>>, sqlx::Error> {
    let mut tx = connection.begin_with(BEGIN_RESTLESS).await?;
    sqlx::query(sql::LOCK_RUNS).bind(vec![run_id]).execute(&mut *tx).await?;
    let asked =
        write(sql::PAUSE_ASK, |ask| sqlx::query(ask).bind(run_id).bind(reason).fetch_optional(&mut *tx))
            .await?;
    let state = asked.as_ref().map(inspect::state).transpose()?;
    let is_counted = asked.as_ref().map(|row| row.try_get("is_counted")).transpose()? == Some(true);
    if is_counted
        || state
            .is_none_or(|state| state.is_terminal() || matches!(state, RunState::Blocked | RunState::Paused))
    {
        tx.rollback().await?;
        return Ok(state.map(|state| if state == RunState::Paused { Ok(Paused::Now) } else { Err(state) }));
    }
    let taken = take(&mut tx, run_id).await?;
    commit("pause", tx.commit()).await?;
    Ok(Some(Ok(if taken { Paused::Now } else { Paused::Requested })))
}

async fn take(connection: &mut PgConnection, run_id: Uuid) -> Result<bool, sqlx::Error> {
    let taken =
        write(sql::PAUSE_TAKE, |take| sqlx::query(take).bind(run_id).fetch_optional(connection)).await?;
    Ok(taken.is_some())
}

/// Finishes pauses that no worker is carrying out, and drops those that came too late.
#[cfg(feature = "worker")]
pub(crate) async fn carry_out(connection: &mut PgConnection, at_once: i64) -> Result<(), sqlx::Error> {
    let left: Vec<Uuid> =
        sqlx::query_scalar(sql::PAUSE_LEFT).bind(at_once).fetch_all(&mut *connection).await?;
    for run_id in &left {
        let mut tx = connection.begin_with(BEGIN_RESTLESS).await?;
        sqlx::query(sql::LOCK_RUNS).bind(vec![*run_id]).execute(&mut *tx).await?;
        take(&mut tx, *run_id).await?;
        commit("pause_left", tx.commit()).await?;
    }
    if !left.is_empty() {
        write(sql::PAUSE_FORGET, |forget| sqlx::query(forget).bind(&left).execute(connection)).await?;
    }
    Ok(())
}

/// Lets a blocked or paused run go on. False where it is neither, nor asked to pause.
pub(crate) async fn resume(connection: &mut PgConnection, run_id: Uuid) -> Result<bool, sqlx::Error> {
    for _ in 0..TRIES {
        let mut tx = connection.begin_with(BEGIN_RESTLESS).await?;
        sqlx::query(sql::LOCK_RUNS).bind(vec![run_id]).execute(&mut *tx).await?;
        let resumed =
            write(sql::RESUME, |resume| sqlx::query(resume).bind(run_id).fetch_optional(&mut *tx)).await?;
        commit("resumption", tx.commit()).await?;
        if resumed.is_some() {
            return Ok(true);
        }
        // Its settlement may have paused it after this statement had looked for it, and before it came to the request.
        let end = inspect::end_of_run(&mut *connection, run_id).await?;
        if end.is_none_or(|end| end.state != RunState::Paused) {
            break;
        }
    }
    Ok(false)
}
