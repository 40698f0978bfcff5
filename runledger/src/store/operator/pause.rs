//! Pause and resume: an operator stops a run that can continue later.

use sqlx::{Connection, PgConnection, Row};
use uuid::Uuid;

use crate::model::run::state::RunState;
use crate::store::places::has_repaired;
use crate::store::run::inspect;
use crate::store::session::BEGIN_RESTLESS;
use crate::store::sql;
use crate::store::write::{commit, write};

/// The result of a request to pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Paused {
    /// The run is paused.
    Now,
    /// A worker executes the run, and pauses it at its next await.
    Requested,
}

/// Why a run cannot be paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotPaused {
    /// It has ended, or is blocked.
    State(RunState),
    /// It is a graph, a gate, or a node that waits for other nodes: the engine only counts the
    /// nodes that have ended.
    Counted,
}

/// The maximum number of tries to resume a run. A settlement may pause the run between a try's read
/// and its write.
const TRIES: u32 = 5;

/// Pauses a run. `None` if the run does not exist.
pub(crate) async fn pause(
    connection: &mut PgConnection,
    run_id: Uuid,
    reason: &str,
) -> Result<Option<Result<Paused, NotPaused>>, sqlx::Error> {
    match pause_once(connection, run_id, reason).await {
        Err(error) if has_repaired(connection, &error, &[run_id]).await? => {
            pause_once(connection, run_id, reason).await
        }
        done => done,
    }
}

async fn pause_once(
    connection: &mut PgConnection,
    run_id: Uuid,
    reason: &str,
) -> Result<Option<Result<Paused, NotPaused>>, sqlx::Error> {
    let mut tx = connection.begin_with(BEGIN_RESTLESS).await?;
    sqlx::query(sql::LOCK_RUNS).bind(vec![run_id]).execute(&mut *tx).await?;
    let asked =
        write(sql::PAUSE_ASK, |ask| sqlx::query(ask).bind(run_id).bind(reason).fetch_optional(&mut *tx))
            .await?;
    let Some(asked) = asked else { return Ok(None) };
    let refused = match inspect::state(&asked)? {
        RunState::Paused => Some(Ok(Paused::Now)),
        state @ RunState::Blocked => Some(Err(NotPaused::State(state))),
        state if state.is_terminal() => Some(Err(NotPaused::State(state))),
        _ if asked.try_get("is_counted")? => Some(Err(NotPaused::Counted)),
        _ => None,
    };
    if refused.is_some() {
        tx.rollback().await?;
        return Ok(refused);
    }
    let taken = take(&mut tx, run_id).await?;
    commit("pause", tx.commit()).await?;
    Ok(Some(Ok(if taken { Paused::Now } else { Paused::Requested })))
}

/// Pauses a run that no worker holds. Returns false if a worker holds it.
pub(crate) async fn take(connection: &mut PgConnection, run_id: Uuid) -> Result<bool, sqlx::Error> {
    let taken =
        write(sql::PAUSE_TAKE, |take| sqlx::query(take).bind(run_id).fetch_optional(connection)).await?;
    Ok(taken.is_some())
}

/// Resumes a blocked or paused run. Returns false if the run is neither and has no pause request.
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
        // A settlement may have paused the run after this statement read `waiting`, and before it
        // reached the request.
        let end = inspect::end_of_run(&mut *connection, run_id).await?;
        if end.is_none_or(|end| end.state != RunState::Paused) {
            break;
        }
    }
    Ok(false)
}
