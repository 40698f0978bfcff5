//! Cancel: ends a run and its descendants from outside.

pub(crate) mod below;

use std::future::Future;
use std::time::{Duration, Instant};

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use self::below::Walk;
use crate::model::payload::Sealer;
use crate::model::replay::recorded::place_of_error;
use crate::model::run::failure::{Failure, FailureKind};
use crate::model::run::state::RunState;
use crate::store::attempt::wait::{Above, above, try_wake_parent, wake};
use crate::store::error::{Class, class, spares_others};
use crate::store::graph::{lock_counters, release};
use crate::store::locks::{IfLocked, is_locked};
use crate::store::places::has_repaired;
use crate::store::sql;
use crate::store::write::{commit, write};

/// The result of a request to cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancelled {
    /// The run is cancelled.
    Now,
    /// The run is not cancelled yet. The worker that holds the run stops it at its next await, or
    /// its steps are compensated first. If the run was paused during its compensation, it continues
    /// when somebody resumes it.
    Requested,
    /// The run had ended before and does not change. Its live descendants are cancelled.
    AlreadyEnded(RunState),
}

/// Who cancels. If a run is blocked because a compensation failed, a person's cancel ends the run.
/// The remaining steps then stay uncompensated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Person,
    Engine,
}

/// The maximum number of tries of a cancel. The server may end a try because of a deadlock or a
/// conflict.
const TRIES: u32 = 5;

/// The result of a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Another transaction keeps the run locked, or the run does not exist.
    LockedOrMissing,
    /// The run is cancelled, or has a cancel request.
    Free {
        cancelled: Cancelled,
        /// The parent to wake afterwards: another transaction keeps it locked, or it cannot be
        /// queued.
        to_wake: Option<Uuid>,
    },
}

/// Cancels one run. `None` if the run does not exist.
pub(crate) async fn cancel(
    connection: &mut PgConnection,
    run_id: Uuid,
    reason: Option<&str>,
    by: By,
) -> Result<Option<Cancelled>, sqlx::Error> {
    let Found::Free { cancelled, to_wake } =
        cancel_if(connection, run_id, reason, by, IfLocked::Wait).await?
    else {
        return Ok(None);
    };
    if let Some(parent) = to_wake
        && let Err(error) = wake(connection, &[parent], IfLocked::Queue).await
    {
        tracing::debug!(%error, %parent, "a worker wakes the parent of a cancelled run");
    }
    Ok(Some(cancelled))
}

pub(crate) async fn cancel_if(
    connection: &mut PgConnection,
    run_id: Uuid,
    reason: Option<&str>,
    by: By,
    if_locked: IfLocked,
) -> Result<Found, sqlx::Error> {
    let mut tries = 1;
    loop {
        match cancel_once(connection, run_id, reason, by, if_locked).await {
            Err(error) if tries < TRIES && class(&error) == Class::Conflict => tries += 1,
            Err(error) if if_locked == IfLocked::Skip && is_locked(&error) => {
                return Ok(Found::LockedOrMissing);
            }
            Err(error) if tries < TRIES && has_repaired(connection, &error, &[run_id]).await? => tries += 1,
            done => return done,
        }
    }
}

async fn cancel_once(
    connection: &mut PgConnection,
    run_id: Uuid,
    reason: Option<&str>,
    by: By,
    if_locked: IfLocked,
) -> Result<Found, sqlx::Error> {
    let mut tx = if_locked.begin(connection).await?;
    if if_locked.lock_runs(&mut tx, &[run_id]).await?.is_empty() {
        tx.rollback().await?;
        return Ok(Found::LockedOrMissing);
    }
    let asked =
        write(sql::CANCEL_ASK, |ask| sqlx::query(ask).bind(run_id).bind(reason).fetch_one(&mut *tx)).await?;
    let ended: Option<String> = asked.try_get("state")?;
    if let Some(state) = ended.as_deref().and_then(RunState::parse) {
        tx.rollback().await?;
        return Ok(Found::Free { cancelled: Cancelled::AlreadyEnded(state), to_wake: None });
    }
    if asked.try_get("in_graph")? {
        // Locks the counters that the end of this run changes, before any later lock.
        lock_counters(&mut tx, &[run_id]).await?;
    }
    let reason: Option<String> = asked.try_get("reason")?;
    // The reason is a text of the engine or of an operator, and is never encrypted.
    let error = Sealer::default().seal_failure(&place_of_error(run_id, ""), &failure(reason.as_deref()));
    let taken = write(sql::CANCEL_TAKE, |take| {
        let query = sqlx::query(take).bind(run_id).bind(error.as_str()).bind(by == By::Person);
        query.bind(reason.as_deref()).fetch_optional(&mut *tx)
    })
    .await?;
    let has_ended = taken.map(|row| row.try_get("ended")).transpose()? == Some(true);
    let to_wake = if has_ended { tell_above(&mut tx, run_id).await? } else { None };
    commit("cancel", tx.commit()).await?;
    Ok(Found::Free { cancelled: if has_ended { Cancelled::Now } else { Cancelled::Requested }, to_wake })
}

/// Cancels all live descendants of some runs. Returns the parents to wake afterwards.
pub(crate) async fn cancel_below(
    connection: &mut PgConnection,
    runs: &[Uuid],
    reason: Option<&str>,
) -> Result<Vec<Uuid>, sqlx::Error> {
    let mut to_wake = Vec::new();
    let mut walk = Walk::below(runs.to_vec(), reason);
    // Boxed, because it is rare and is part of the task of every run.
    Box::pin(walk.go_on(connection, &mut Budget(None), &mut to_wake)).await?;
    match walk.failure() {
        Some(error) => Err(error),
        None => Ok(to_wake),
    }
}

/// Cancels a run for the engine. Stores a request if it is not free, or if the cancel fails.
/// `if_noted` says what to do if another transaction is storing a request. Returns the parent to
/// wake afterwards.
pub(crate) async fn cancel_or_note(
    connection: &mut PgConnection,
    run_id: Uuid,
    reason: Option<&str>,
    is_free: bool,
    if_noted: IfLocked,
) -> Result<Option<Uuid>, sqlx::Error> {
    if is_free {
        match cancel_if(connection, run_id, reason, By::Engine, IfLocked::Skip).await {
            Ok(Found::Free { to_wake, .. }) => return Ok(to_wake),
            Ok(Found::LockedOrMissing) => {}
            Err(error) if spares_others(&error) => {
                tracing::warn!(%error, %run_id, "a run is not cancelled yet; a worker tries again");
            }
            Err(error) => return Err(error),
        }
    }
    note(connection, run_id, reason, if_noted).await.map(|()| None)
}

/// Stores a request to cancel a run.
async fn note(
    connection: &mut PgConnection,
    run_id: Uuid,
    reason: Option<&str>,
    if_noted: IfLocked,
) -> Result<(), sqlx::Error> {
    let mut tries = 1;
    loop {
        match note_once(connection, run_id, reason, if_noted).await {
            Err(error) if tries < TRIES && class(&error) == Class::Conflict => tries += 1,
            done => return done,
        }
    }
}

async fn note_once(
    connection: &mut PgConnection,
    run_id: Uuid,
    reason: Option<&str>,
    if_noted: IfLocked,
) -> Result<(), sqlx::Error> {
    let mut tx = if_noted.begin(connection).await?;
    write(sql::CANCEL_NOTE, |note| sqlx::query(note).bind(run_id).bind(reason).execute(&mut *tx)).await?;
    commit("cancel_note", tx.commit()).await
}

/// Cancels nodes of ended graphs in one transaction: nodes that are not claimed and have neither
/// recorded steps nor children. Returns how many it cancelled.
async fn cancel_nodes(
    connection: &mut PgConnection,
    nodes: &[Uuid],
    reason: Option<&str>,
) -> Result<usize, sqlx::Error> {
    let mut tries = 1;
    loop {
        match cancel_nodes_once(connection, nodes, reason).await {
            Err(error) if tries < TRIES && class(&error) == Class::Conflict => tries += 1,
            Err(error) if tries < TRIES && has_repaired(connection, &error, nodes).await? => tries += 1,
            // The caller cancels them one by one.
            Err(error) if spares_others(&error) => return Ok(0),
            done => return done,
        }
    }
}

async fn cancel_nodes_once(
    connection: &mut PgConnection,
    nodes: &[Uuid],
    reason: Option<&str>,
) -> Result<usize, sqlx::Error> {
    let mut tx = IfLocked::Skip.begin(connection).await?;
    let nodes = IfLocked::Skip.lock_runs(&mut tx, nodes).await?;
    lock_counters(&mut tx, &nodes).await?;
    // Reasons from the engine and operators are never encrypted, so every node gets the same text.
    let error = Sealer::default().seal_failure(&place_of_error(Uuid::nil(), ""), &failure(reason));
    let row = write(sql::CANCEL_NODES, |take| {
        sqlx::query(take).bind(&nodes).bind(error.as_str()).fetch_one(&mut *tx)
    })
    .await?;
    let taken: Vec<Uuid> = row.try_get("taken")?;
    if taken.is_empty() {
        tx.rollback().await?;
        return Ok(0);
    }
    release(&mut tx, &taken).await?;
    commit("cancel_batch", tx.commit()).await?;
    Ok(taken.len())
}

/// The remaining time for cancels or pauses. `None`: unlimited.
pub(crate) struct Budget(pub(crate) Option<Duration>);

impl Budget {
    fn is_unlimited(&self) -> bool {
        self.0.is_none()
    }

    /// The remaining time.
    pub(crate) fn left(&self) -> Duration {
        self.0.unwrap_or(Duration::MAX)
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.0 == Some(Duration::ZERO)
    }

    pub(crate) async fn spend<T>(&mut self, work: impl Future<Output = T>) -> T {
        let began = Instant::now();
        let done = work.await;
        self.0 = self.0.map(|left| left.saturating_sub(began.elapsed()));
        done
    }
}

/// Asks another worker process to drain.
pub(crate) async fn ask_drain(connection: &mut PgConnection, worker_id: i64) -> Result<bool, sqlx::Error> {
    let done =
        write(sql::WORKER_ASK_DRAIN, |ask| sqlx::query(ask).bind(worker_id).execute(connection)).await?;
    Ok(done.rows_affected() > 0)
}

/// The failure of a cancelled run.
pub(crate) fn failure(reason: Option<&str>) -> Failure {
    let message = match reason {
        Some(reason) => format!("cancelled: {reason}"),
        None => "cancelled".to_owned(),
    };
    Failure::new(FailureKind::Cancelled, message)
}

/// Wakes the parent that waits for a cancelled child, or releases the dependents of a cancelled
/// node. Returns the parent if it must be woken afterwards. Here, the parent is locked after the
/// child.
async fn tell_above(tx: &mut PgConnection, run_id: Uuid) -> Result<Option<Uuid>, sqlx::Error> {
    match above(&mut *tx, run_id).await? {
        Above::Nothing => {}
        Above::Graph(_) => release(tx, &[run_id]).await?,
        Above::Parent(parent) => {
            // A wait for the parent would keep the child locked.
            if IfLocked::Skip.lock_runs(tx, &[parent]).await?.is_empty()
                || !Box::pin(try_wake_parent(tx, run_id)).await?
            {
                return Ok(Some(parent));
            }
        }
    }
    Ok(None)
}
