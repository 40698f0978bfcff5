//! Cancel: what a person or another run does to a run from outside.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::{Duration, Instant};

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::error::{Class, class};
use super::graph::{lock_pending, release};
#[cfg(feature = "worker")]
use super::locks::limit_beyond;
use super::locks::{IfLocked, free, is_locked};
use super::places::has_repaired;
use super::sql;
use super::wait::{Above, above, wake, wake_parents};
use super::write::{commit, write};
use crate::model::failure::{Failure, FailureKind};
use crate::model::payload::Sealer;
use crate::model::recorded::place_of_error;
use crate::model::state::RunState;

/// What became of a request to cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancelled {
    /// The run is cancelled.
    Now,
    /// The run is not cancelled yet. A worker that holds it stops it at its next await, or what its steps did is taken back first. If the run was paused
    /// before that was done, it goes on when somebody resumes it.
    Requested,
    /// The run had ended before, and stays as it is; what goes on below it is cancelled all the same.
    AlreadyEnded(RunState),
}

/// Who cancels. A person's cancel of a run that is parked because an undo failed ends it, with that left undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Person,
    Engine,
}

/// Why what a failed run has left is cancelled: the words of `settle.sql`.
#[cfg(feature = "worker")]
pub(crate) const FAILED_ABOVE: &str = "a run above it has failed";

/// The number of nodes that the first transaction cancels. Each transaction cancels all dependents of its nodes, and walks
/// them once for each of these nodes. Later transactions do not walk what this one has cancelled.
const FIRST_NODES: usize = 16;

/// The maximum number of nodes that one transaction cancels.
const MOST_NODES: usize = 1_000;

/// How often a cancel is tried that the server ends as a deadlock or a conflict with another transaction.
const TRIES: u32 = 5;

/// The result of a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Another transaction keeps the run locked, or the run is not there.
    LockedOrMissing,
    /// The run is cancelled, or is asked to be.
    Free {
        cancelled: Cancelled,
        /// The parent to wake afterwards: another transaction keeps it locked.
        to_wake: Option<Uuid>,
    },
}

/// Cancels one run. None where there is no such run.
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

/// Cancels one run for the engine, unless another transaction keeps it locked: then it is found again.
#[cfg(feature = "worker")]
pub(crate) async fn cancel_unless_locked(
    connection: &mut PgConnection,
    run_id: Uuid,
    reason: Option<&str>,
) -> Result<Found, sqlx::Error> {
    cancel_if(connection, run_id, reason, By::Engine, IfLocked::Skip).await
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
        // What its end counts, before what stands behind that.
        lock_pending(&mut tx, &[run_id]).await?;
    }
    let reason: Option<String> = asked.try_get("reason")?;
    // Words of the engine and of an operator: never sealed.
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

/// Cancels everything that goes on below some runs: parents first, so that no cancelled child wakes a parent that is about to be cancelled too, and
/// again until nothing is left, since a run may start others until it has ended or its own cancel is asked for. A run that another transaction keeps locked is
/// asked to be cancelled, and maintenance does it. Returns the parents to wake afterwards.
pub(crate) async fn cancel_below(
    connection: &mut PgConnection,
    runs: &[Uuid],
    reason: Option<&str>,
) -> Result<Vec<Uuid>, sqlx::Error> {
    let mut to_wake = Vec::new();
    // Rare, and part of the task of every run.
    Box::pin(below(connection, runs, reason, &mut Budget(None), &mut to_wake)).await?;
    Ok(to_wake)
}

/// A run below others, how deep it is, whether it is free to be cancelled beside others, and the reason.
type Below = (Uuid, i32, bool, Option<String>);

/// As [`cancel_below`], until it has cancelled for so long: then it returns false. Finding what is below does not
/// count, or it could be all there is time for.
async fn below(
    connection: &mut PgConnection,
    runs: &[Uuid],
    reason: Option<&str>,
    budget: &mut Budget,
    to_wake: &mut Vec<Uuid>,
) -> Result<bool, sqlx::Error> {
    loop {
        let below: Vec<Below> =
            sqlx::query_as(sql::CANCEL_BELOW).bind(runs).bind(reason).fetch_all(&mut *connection).await?;
        let Some((_, topmost, ..)) = below.first() else {
            return Ok(true);
        };
        let mut unclaimed: BTreeMap<Option<&str>, Vec<Uuid>> = BTreeMap::new();
        for (run_id, .., reason) in below.iter().filter(|(.., is_free, _)| *is_free) {
            unclaimed.entry(reason.as_deref()).or_default().push(*run_id);
        }
        let mut n_taken = 0;
        for (reason, nodes) in &unclaimed {
            let (mut left, mut most) = (nodes.as_slice(), FIRST_NODES);
            while !left.is_empty() {
                if budget.is_spent() {
                    return Ok(false);
                }
                let (next, behind) = left.split_at(most.min(left.len()));
                n_taken += budget.spend(cancel_nodes(connection, next, *reason)).await?;
                (left, most) = (behind, (most * 2).min(MOST_NODES));
            }
        }
        if n_taken > 0 {
            continue;
        }
        let next: Vec<(Uuid, Option<&str>)> = below
            .iter()
            .filter(|(_, depth, ..)| depth == topmost)
            .map(|(run_id, .., reason)| (*run_id, reason.as_deref()))
            .collect();
        for (run_id, reason) in note_locked(connection, next).await? {
            if budget.is_spent() {
                return Ok(false);
            }
            let cancel = cancel_if(connection, run_id, reason, By::Engine, IfLocked::Skip);
            match budget.spend(cancel).await? {
                Found::LockedOrMissing => note(connection, &[(run_id, reason)]).await?,
                Found::Free { to_wake: parent, .. } => to_wake.extend(parent),
            }
        }
    }
}

/// Notes the requests of those runs that other transactions keep locked. Returns the others.
pub(super) async fn note_locked<'r>(
    connection: &mut PgConnection,
    runs: Vec<(Uuid, Option<&'r str>)>,
) -> Result<Vec<(Uuid, Option<&'r str>)>, sqlx::Error> {
    let ids: Vec<Uuid> = runs.iter().map(|(run_id, _)| *run_id).collect();
    let free = free(connection, &ids).await?;
    let (free, locked): (Vec<_>, Vec<_>) = runs.into_iter().partition(|(run_id, _)| free.contains(run_id));
    if !locked.is_empty() {
        note(connection, &locked).await?;
    }
    Ok(free)
}

/// Notes that runs are to be cancelled which other transactions keep locked.
pub(super) async fn note(
    connection: &mut PgConnection,
    runs: &[(Uuid, Option<&str>)],
) -> Result<(), sqlx::Error> {
    let (ids, reasons): (Vec<Uuid>, Vec<Option<&str>>) = runs.iter().copied().unzip();
    let mut tries = 1;
    loop {
        let noted = write(sql::CANCEL_NOTE, |note| {
            sqlx::query(note).bind(&ids).bind(&reasons).execute(&mut *connection)
        });
        match noted.await {
            Err(error) if tries < TRIES && class(&error) == Class::Conflict => tries += 1,
            done => return done.map(drop),
        }
    }
}

/// Cancels nodes of ended graphs in one transaction: unclaimed nodes without recorded steps and without
/// children. Returns how many it cancelled.
async fn cancel_nodes(
    connection: &mut PgConnection,
    nodes: &[Uuid],
    reason: Option<&str>,
) -> Result<usize, sqlx::Error> {
    let mut tries = 1;
    loop {
        match cancel_nodes_once(connection, nodes, reason).await {
            Err(error) if tries < TRIES && class(&error) == Class::Conflict => tries += 1,
            Err(error) if is_locked(&error) => return Ok(0),
            Err(error) if tries < TRIES && has_repaired(connection, &error, nodes).await? => tries += 1,
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
    // The engine and operators never seal their reasons, so every node gets the same text.
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

/// The result of carrying out the requests that are left.
#[cfg(feature = "worker")]
#[derive(Debug)]
pub(crate) struct CarriedOut {
    /// False if it could go on at once: its budget is spent, or there may be another batch.
    pub(crate) is_done: bool,
    /// The parents to wake afterwards: other transactions keep them locked.
    pub(crate) to_wake: Vec<Uuid>,
}

/// Finishes what others have begun: requests that no worker is carrying out, and the cancelling below runs that have
/// ended. Drops the requests that are done. Leaves out runs that another transaction keeps locked.
#[cfg(feature = "worker")]
pub(crate) async fn carry_out(
    connection: &mut PgConnection,
    at_once: i64,
    budget: Duration,
) -> Result<CarriedOut, sqlx::Error> {
    let mut to_wake = Vec::new();
    let is_done = carry_out_within(connection, at_once, &mut Budget(Some(budget)), &mut to_wake).await?;
    Ok(CarriedOut { is_done, to_wake })
}

#[cfg(feature = "worker")]
async fn carry_out_within(
    connection: &mut PgConnection,
    at_once: i64,
    budget: &mut Budget,
    to_wake: &mut Vec<Uuid>,
) -> Result<bool, sqlx::Error> {
    let (mut n_cancelled, mut locked) = (0, Vec::new());
    let left: Vec<(Uuid, Option<String>, bool)> = loop {
        let limit = limit_beyond(at_once, &locked);
        let left: Vec<(Uuid, Option<String>, bool)> =
            sqlx::query_as(sql::CANCEL_LEFT).bind(limit).bind(&locked).fetch_all(&mut *connection).await?;
        let n_locked = locked.len();
        let going_on: Vec<Uuid> =
            left.iter().filter(|(.., ended)| !ended).map(|(run_id, ..)| *run_id).collect();
        let free = free(connection, &going_on).await?;
        locked.extend(going_on.iter().filter(|run_id| !free.contains(run_id)));
        for (run_id, reason, _) in left.iter().filter(|(run_id, ..)| free.contains(run_id)) {
            if budget.is_spent() {
                return Ok(n_cancelled == 0);
            }
            match budget.spend(cancel_unless_locked(connection, *run_id, reason.as_deref())).await? {
                Found::LockedOrMissing => locked.push(*run_id),
                Found::Free { to_wake: parent, .. } => {
                    n_cancelled += 1;
                    to_wake.extend(parent);
                }
            }
        }
        if locked.len() == n_locked {
            break left;
        }
    };
    let runs: Vec<Uuid> = left.into_iter().map(|(run_id, ..)| run_id).collect();
    if runs.is_empty() && locked.is_empty() {
        return Ok(true);
    }
    if !below(connection, &runs, None, budget, to_wake).await? {
        return Ok(false);
    }
    let forgotten =
        write(sql::CANCEL_FORGET, |forget| sqlx::query(forget).bind(&runs).bind(&locked).execute(connection))
            .await?;
    Ok(forgotten.rows_affected() == 0)
}

/// For how long there may be more cancelling. Finding what to cancel does not count, or it could be all that there is time for.
struct Budget(Option<Duration>);

impl Budget {
    fn is_spent(&self) -> bool {
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

/// The failure that a cancelled run ends with.
pub(crate) fn failure(reason: Option<&str>) -> Failure {
    let message = match reason {
        Some(reason) => format!("cancelled: {reason}"),
        None => "cancelled".to_owned(),
    };
    Failure::new(FailureKind::Cancelled, message)
}

/// Cancelling a child wakes the parent that waits for it, which is locked after the child here; cancelling a node decides about those that need it. Returns
/// the parent if it is to be woken afterwards.
async fn tell_above(tx: &mut PgConnection, run_id: Uuid) -> Result<Option<Uuid>, sqlx::Error> {
    match above(&mut *tx, run_id).await? {
        Above::Nothing => {}
        Above::Graph(_) => release(tx, &[run_id]).await?,
        Above::Parent(parent) => {
            // A wait for the parent would keep the child locked.
            if IfLocked::Skip.lock_runs(tx, &[parent]).await?.is_empty() {
                return Ok(Some(parent));
            }
            wake_parents(tx, &[run_id]).await?;
        }
    }
    Ok(None)
}
