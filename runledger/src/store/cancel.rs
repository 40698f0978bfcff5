//! Cancel and resume: what a person or another run does to a run from outside.

use sqlx::{Connection, PgConnection, Row};
use uuid::Uuid;

use super::checkpoint::as_json;
use super::sql;
use crate::model::failure::{Failure, FailureKind};
use crate::model::state::RunState;

/// What became of a request to cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancelled {
    /// The run is cancelled.
    Now,
    /// A worker holds the run; it stops it at its next await and settles it as cancelled.
    Requested,
    /// The run had ended before; nothing changed.
    AlreadyEnded(RunState),
}

/// Cancels one run. None where there is no such run.
pub(crate) async fn cancel(
    connection: &mut PgConnection,
    run_id: Uuid,
    reason: Option<&str>,
) -> Result<Option<Cancelled>, sqlx::Error> {
    let mut tx = connection.begin().await?;
    sqlx::query(sql::LOCK_RUNS).bind(vec![run_id]).execute(&mut *tx).await?;
    let asked = sqlx::query(sql::CANCEL_ASK).bind(run_id).bind(reason).fetch_optional(&mut *tx).await?;
    let Some(asked) = asked else {
        tx.rollback().await?;
        return Ok(None);
    };
    let ended: Option<String> = asked.try_get("state")?;
    if let Some(state) = ended.as_deref().and_then(RunState::parse) {
        tx.rollback().await?;
        return Ok(Some(Cancelled::AlreadyEnded(state)));
    }
    let reason: Option<String> = asked.try_get("reason")?;
    let error = as_json(&failure(reason.as_deref()));
    let taken = sqlx::query(sql::CANCEL_TAKE).bind(run_id).bind(error).fetch_optional(&mut *tx).await?;
    wake_parent(&mut tx, run_id, taken.is_some()).await?;
    tx.commit().await?;
    Ok(Some(if taken.is_some() { Cancelled::Now } else { Cancelled::Requested }))
}

/// The runs that a run has started and that have not ended.
pub(crate) async fn children(connection: &mut PgConnection, run_id: Uuid) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar(sql::CHILDREN).bind(run_id).fetch_all(connection).await
}

/// Drops requests that came too late, and those that have been carried out.
#[cfg(feature = "worker")]
pub(crate) async fn forget(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query(sql::CANCEL_FORGET).execute(connection).await?;
    Ok(())
}

/// Lets a blocked run go on. False where it is not blocked.
pub(crate) async fn resume(connection: &mut PgConnection, run_id: Uuid) -> Result<bool, sqlx::Error> {
    Ok(sqlx::query(sql::RESUME).bind(run_id).fetch_optional(connection).await?.is_some())
}

/// Asks another worker process to drain.
pub(crate) async fn ask_drain(connection: &mut PgConnection, worker_id: i64) -> Result<bool, sqlx::Error> {
    let done = sqlx::query(sql::WORKER_ASK_DRAIN).bind(worker_id).execute(connection).await?;
    Ok(done.rows_affected() > 0)
}

/// The failure that a cancelled run ends with.
pub(crate) fn failure(reason: Option<&str>) -> Failure {
    let message = match reason {
        Some(reason) => format!("cancelled: {reason}"),
        None => "cancelled".to_owned(),
    };
    Failure::new(FailureKind::Cancelled, message)
}

/// Cancelling a child wakes the parent that waits for it. The parent is locked after the child here, and settlements lock parents only, so the
/// order of locks stays from child to parent.
async fn wake_parent(tx: &mut PgConnection, run_id: Uuid, ended: bool) -> Result<(), sqlx::Error> {
    if !ended {
        return Ok(());
    }
    let parent: Option<Uuid> =
        sqlx::query_scalar(sql::PARENT).bind(run_id).fetch_optional(&mut *tx).await?.flatten();
    if let Some(parent) = parent {
        sqlx::query(sql::LOCK_RUNS).bind(vec![parent]).execute(&mut *tx).await?;
        sqlx::query(sql::WAKE_PARENTS).bind(vec![run_id]).execute(tx).await?;
    }
    Ok(())
}
