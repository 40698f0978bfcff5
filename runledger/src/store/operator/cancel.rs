//! Cancel: ends a run and its descendants from outside.

mod below;

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
use crate::store::graph::{lock_pending, release};
#[cfg(feature = "worker")]
use crate::store::locks::limit_beyond;
use crate::store::locks::{IfLocked, free, is_locked};
use crate::store::places::has_repaired;
#[cfg(feature = "worker")]
use crate::store::set_aside::SetAside;
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

/// The reason for cancelling the descendants of a failed run. `settle.sql` has the same text.
#[cfg(feature = "worker")]
pub(crate) const FAILED_ABOVE: &str = "a run above it has failed";

/// The maximum number of tries of a cancel. The server may end a try because of a deadlock or a
/// conflict.
const TRIES: u32 = 5;

/// After this many failures, a caller without a budget gets the error, because it may concern all
/// runs. Maintenance then cancels the remaining runs.
const MOST_FAILURES: usize = 100;

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

async fn cancel_if(
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
        lock_pending(&mut tx, &[run_id]).await?;
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

/// Cancels runs one by one for the engine, while the budget lasts. Stores a request for a run that
/// another transaction keeps locked, or whose cancel fails. Appends the parents to wake afterwards.
/// Returns the runs for which storing the request failed too.
pub(super) async fn cancel_each(
    connection: &mut PgConnection,
    runs: Vec<(Uuid, Option<&str>)>,
    budget: &mut Budget,
    to_wake: &mut Vec<Uuid>,
) -> Result<Vec<(Uuid, sqlx::Error)>, sqlx::Error> {
    let ids: Vec<Uuid> = runs.iter().map(|(run_id, _)| *run_id).collect();
    let free = free(connection, &ids).await?;
    let mut failed = Vec::new();
    for (run_id, reason) in runs {
        let is_free = free.contains(&run_id);
        match budget.spend(cancel_or_note(connection, run_id, reason, is_free)).await {
            Ok(parent) => to_wake.extend(parent),
            Err(error)
                if spares_others(&error) && !(budget.is_unlimited() && failed.len() == MOST_FAILURES) =>
            {
                failed.push((run_id, error));
            }
            Err(error) => return Err(error),
        }
        if budget.is_spent() {
            break;
        }
    }
    Ok(failed)
}

/// Cancels a run if it is free, or stores a request. Returns the parent to wake afterwards.
async fn cancel_or_note(
    connection: &mut PgConnection,
    run_id: Uuid,
    reason: Option<&str>,
    is_free: bool,
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
    note(connection, run_id, reason).await.map(|()| None)
}

/// Stores a request to cancel a run.
async fn note(connection: &mut PgConnection, run_id: Uuid, reason: Option<&str>) -> Result<(), sqlx::Error> {
    let mut tries = 1;
    loop {
        let noted = write(sql::CANCEL_NOTE, |note| {
            sqlx::query(note).bind(run_id).bind(reason).execute(&mut *connection)
        });
        match noted.await {
            Err(error) if tries < TRIES && class(&error) == Class::Conflict => tries += 1,
            done => return done.map(drop),
        }
    }
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
    lock_pending(&mut tx, &nodes).await?;
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

/// The result of cancelling within a budget.
#[cfg(feature = "worker")]
#[derive(Debug)]
pub(crate) struct CarriedOut {
    /// False if there may be more to do at once.
    pub(crate) is_done: bool,
    /// The parents to wake afterwards: other transactions keep them locked.
    pub(crate) to_wake: Vec<Uuid>,
}

/// Carries out the cancel requests that others stored. Each call continues where the last one
/// stopped.
#[cfg(feature = "worker")]
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// The walks through the descendants of runs with requests. The newest is next, so a long walk
    /// does not delay shorter ones.
    walks: Vec<Walk>,
    aside: SetAside,
    /// The parents to wake. If a call fails, the next call returns them.
    to_wake: Vec<Uuid>,
}

#[cfg(feature = "worker")]
impl Requests {
    /// Finishes cancels that others began: requests that no worker carries out, and descendants of
    /// ended runs. Drops the requests that are done. Leaves out runs that another transaction keeps
    /// locked, and sets aside runs whose cancel fails.
    pub(crate) async fn carry_out(
        &mut self,
        connection: &mut PgConnection,
        at_once: i64,
        budget: Duration,
    ) -> Result<CarriedOut, sqlx::Error> {
        let mut budget = Budget::of(budget);
        let is_done = Box::pin(self.carry_out_within(connection, at_once, &mut budget)).await?;
        Ok(CarriedOut { is_done, to_wake: std::mem::take(&mut self.to_wake) })
    }

    async fn carry_out_within(
        &mut self,
        connection: &mut PgConnection,
        at_once: i64,
        budget: &mut Budget,
    ) -> Result<bool, sqlx::Error> {
        let n_cancelled = self.cancel_left(connection, at_once, budget).await?;
        let mut n_forgotten = 0;
        while let Some(walk) = self.walks.last_mut() {
            if !walk.go_on(connection, budget, &mut self.to_wake).await? {
                return Ok(false);
            }
            if let Some(error) = walk.failure() {
                tracing::warn!(%error, runs = ?walk.runs(), "not everything below runs is cancelled; a worker tries again");
                walk.runs().iter().for_each(|run_id| self.aside.add(*run_id, Duration::ZERO));
            } else {
                n_forgotten += Box::pin(self.aside.spare(connection, walk.runs(), forget)).await?.done.len();
            }
            self.walks.pop();
        }
        Ok(n_cancelled == 0 && n_forgotten == 0 && !budget.is_spent())
    }

    /// Cancels the runs that have requests, and begins a walk through their descendants and those
    /// of ended runs. Returns how many it cancelled.
    async fn cancel_left(
        &mut self,
        connection: &mut PgConnection,
        at_once: i64,
        budget: &mut Budget,
    ) -> Result<usize, sqlx::Error> {
        let mut n_cancelled = 0;
        let mut left_out = self.aside.runs();
        left_out.extend(self.walks.iter().flat_map(Walk::runs));
        loop {
            let limit = limit_beyond(at_once, &left_out);
            let query = sqlx::query_as(sql::CANCEL_LEFT).bind(limit).bind(&left_out);
            let left: Vec<(Uuid, Option<String>, bool)> = query.fetch_all(&mut *connection).await?;
            left_out.extend(left.iter().map(|(run_id, ..)| *run_id));
            let (over, going_on): (Vec<_>, Vec<_>) = left.into_iter().partition(|(.., is_over)| *is_over);
            let mut walked: Vec<Uuid> = over.into_iter().map(|(run_id, ..)| run_id).collect();
            let ids: Vec<Uuid> = going_on.iter().map(|(run_id, ..)| *run_id).collect();
            let free = free(connection, &ids).await?;
            for (run_id, reason, _) in going_on.iter().filter(|(run_id, ..)| free.contains(run_id)) {
                if budget.is_spent() {
                    break;
                }
                let began = Instant::now();
                let cancel = cancel_if(connection, *run_id, reason.as_deref(), By::Engine, IfLocked::Skip);
                match budget.spend(cancel).await {
                    Ok(Found::Free { cancelled, to_wake: parent }) => {
                        walked.push(*run_id);
                        self.to_wake.extend(parent);
                        if cancelled != Cancelled::Requested {
                            n_cancelled += 1;
                            continue;
                        }
                    }
                    Ok(Found::LockedOrMissing) => {}
                    Err(error) if spares_others(&error) => {
                        tracing::warn!(%error, %run_id, "a run is not cancelled yet; a worker tries again");
                    }
                    Err(error) => {
                        self.aside.add_unless_alive(*run_id, &error);
                        return Err(error);
                    }
                }
                self.aside.add(*run_id, began.elapsed());
            }
            if !walked.is_empty() {
                self.walks.push(Walk::below(walked, None));
            }
            if going_on.is_empty() || budget.is_spent() {
                return Ok(n_cancelled);
            }
        }
    }
}

/// Drops the requests of runs that have ended or do not exist, and have no live descendants.
/// Returns these runs, or none if there was no request.
#[cfg(feature = "worker")]
async fn forget(connection: &mut PgConnection, runs: &[Uuid]) -> Result<Vec<Uuid>, sqlx::Error> {
    let forgotten = write(sql::CANCEL_FORGET, |forget| sqlx::query(forget).bind(runs).execute(connection));
    Ok(if forgotten.await?.rows_affected() == 0 { Vec::new() } else { runs.to_vec() })
}

/// The remaining time for cancels. `None`: unlimited.
pub(super) struct Budget(Option<Duration>);

impl Budget {
    #[cfg(feature = "worker")]
    pub(super) fn of(time: Duration) -> Self {
        Self(Some(time))
    }

    fn is_unlimited(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn is_spent(&self) -> bool {
        self.0 == Some(Duration::ZERO)
    }

    async fn spend<T>(&mut self, work: impl Future<Output = T>) -> T {
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
