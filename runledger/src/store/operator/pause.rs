//! Pause and resume: an operator stops a run that can continue later.

#[cfg(feature = "worker")]
use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection, Row};
use uuid::Uuid;

use crate::model::run::state::RunState;
#[cfg(feature = "worker")]
use crate::store::locks::{IfLocked, free, limit_beyond};
use crate::store::places::has_repaired;
use crate::store::run::inspect;
use crate::store::session::BEGIN_RESTLESS;
#[cfg(feature = "worker")]
use crate::store::set_aside::SetAside;
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

async fn take(connection: &mut PgConnection, run_id: Uuid) -> Result<bool, sqlx::Error> {
    let taken =
        write(sql::PAUSE_TAKE, |take| sqlx::query(take).bind(run_id).fetch_optional(connection)).await?;
    Ok(taken.is_some())
}

/// Finishes pauses that no worker carries out, for about as long as `budget`, and drops requests
/// that came too late. Leaves runs that another transaction keeps locked for a later call.
#[cfg(feature = "worker")]
pub(crate) async fn carry_out(
    connection: &mut PgConnection,
    aside: &mut SetAside,
    at_once: i64,
    budget: Duration,
) -> Result<(), sqlx::Error> {
    let began = Instant::now();
    let mut left_out = aside.runs();
    loop {
        let left: Vec<Uuid> = sqlx::query_scalar(sql::PAUSE_LEFT)
            .bind(limit_beyond(at_once, &left_out))
            .bind(&left_out)
            .fetch_all(&mut *connection)
            .await?;
        let free = free(connection, &left).await?;
        let mut failed = Vec::new();
        for run_id in left.iter().filter(|run_id| free.contains(run_id)) {
            if began.elapsed() >= budget {
                return Ok(());
            }
            failed.extend(Box::pin(aside.spare(connection, &[*run_id], take_free)).await?.failed);
        }
        if left.is_empty() {
            return Ok(());
        }
        left_out.extend(&left);
        let others: Vec<Uuid> = left.into_iter().filter(|run_id| !failed.contains(run_id)).collect();
        Box::pin(aside.spare(connection, &others, forget)).await?;
    }
}

/// Drops the requests that came too late.
#[cfg(feature = "worker")]
async fn forget(connection: &mut PgConnection, runs: &[Uuid]) -> Result<Vec<Uuid>, sqlx::Error> {
    write(sql::PAUSE_FORGET, |forget| sqlx::query(forget).bind(runs).execute(connection)).await?;
    Ok(Vec::new())
}

/// Pauses the runs that no other transaction keeps locked.
#[cfg(feature = "worker")]
async fn take_free(connection: &mut PgConnection, runs: &[Uuid]) -> Result<Vec<Uuid>, sqlx::Error> {
    let mut tx = IfLocked::Skip.begin(connection).await?;
    for run_id in IfLocked::Skip.lock_runs(&mut tx, runs).await? {
        take(&mut tx, run_id).await?;
    }
    commit("pause_left", tx.commit()).await?;
    Ok(Vec::new())
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
