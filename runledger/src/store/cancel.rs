//! Cancel: what a person or another run does to a run from outside.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection, Row};
use uuid::Uuid;

use super::error::{Class, class};
use super::graph::{lock_pending, release};
use super::session::BEGIN_RESTLESS;
use super::sql;
use super::wait::{Above, above, wake_parents};
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
    /// A worker holds the run, and stops it at its next await; or what its steps did is taken back first. Then it is cancelled.
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

/// The maximum number of nodes that one transaction cancels. It locks the counters of their dependents for
/// some 10 ms.
const NODES_AT_ONCE: usize = 1_000;

/// How often a cancel is tried that meets the locks of a settlement crosswise: it locks a child and then its parent, a batch of settlements the parents
/// of its runs in the order of their ids.
const TRIES: u32 = 5;

/// Cancels one run. None where there is no such run.
pub(crate) async fn cancel(
    connection: &mut PgConnection,
    run_id: Uuid,
    reason: Option<&str>,
    by: By,
) -> Result<Option<Cancelled>, sqlx::Error> {
    for _ in 1..TRIES {
        match cancel_once(connection, run_id, reason, by).await {
            Err(error) if class(&error) == Class::Conflict => {}
            done => return done,
        }
    }
    cancel_once(connection, run_id, reason, by).await
}

async fn cancel_once(
    connection: &mut PgConnection,
    run_id: Uuid,
    reason: Option<&str>,
    by: By,
) -> Result<Option<Cancelled>, sqlx::Error> {
    let mut tx = connection.begin_with(BEGIN_RESTLESS).await?;
    sqlx::query(sql::LOCK_RUNS).bind(vec![run_id]).execute(&mut *tx).await?;
    let asked =
        write(sql::CANCEL_ASK, |ask| sqlx::query(ask).bind(run_id).bind(reason).fetch_optional(&mut *tx))
            .await?;
    let Some(asked) = asked else {
        tx.rollback().await?;
        return Ok(None);
    };
    let ended: Option<String> = asked.try_get("state")?;
    if let Some(state) = ended.as_deref().and_then(RunState::parse) {
        tx.rollback().await?;
        return Ok(Some(Cancelled::AlreadyEnded(state)));
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
    tell_above(&mut tx, run_id, has_ended).await?;
    commit("cancel", tx.commit()).await?;
    Ok(Some(if has_ended { Cancelled::Now } else { Cancelled::Requested }))
}

/// Cancels everything that goes on below some runs: parents first, so that no cancelled child wakes a parent that is about to be cancelled too, and
/// again until nothing is left, since a run may start others until it has ended or its own cancel is asked for.
pub(crate) async fn cancel_below(
    connection: &mut PgConnection,
    runs: &[Uuid],
    reason: Option<&str>,
) -> Result<(), sqlx::Error> {
    // Rare, and part of the task of every run.
    Box::pin(below(connection, runs, reason, &mut Budget(None))).await.map(drop)
}

/// As [`cancel_below`], until it has cancelled for so long. False where that came first. Finding what is below does not count, or it could be all there
/// is time for.
async fn below(
    connection: &mut PgConnection,
    runs: &[Uuid],
    reason: Option<&str>,
    budget: &mut Budget,
) -> Result<bool, sqlx::Error> {
    loop {
        let below: Vec<(Uuid, i32, bool, Option<String>)> =
            sqlx::query_as(sql::CANCEL_BELOW).bind(runs).bind(reason).fetch_all(&mut *connection).await?;
        let Some((_, topmost, ..)) = below.first() else { return Ok(true) };
        let mut free: BTreeMap<Option<&str>, Vec<Uuid>> = BTreeMap::new();
        for (run_id, .., reason) in below.iter().filter(|(_, _, is_free, _)| *is_free) {
            free.entry(reason.as_deref()).or_default().push(*run_id);
        }
        let mut n_taken = 0;
        for (reason, nodes) in &free {
            for nodes in nodes.chunks(NODES_AT_ONCE) {
                if budget.is_spent() {
                    return Ok(false);
                }
                n_taken += budget.spend(cancel_nodes(connection, nodes, *reason)).await?;
            }
        }
        if n_taken > 0 {
            continue;
        }
        for (run_id, .., reason) in below.iter().filter(|(_, depth, ..)| depth == topmost) {
            if budget.is_spent() {
                return Ok(false);
            }
            budget.spend(cancel(connection, *run_id, reason.as_deref(), By::Engine)).await?;
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
    for _ in 1..TRIES {
        match cancel_nodes_once(connection, nodes, reason).await {
            Err(error) if class(&error) == Class::Conflict => {}
            done => return done,
        }
    }
    cancel_nodes_once(connection, nodes, reason).await
}

async fn cancel_nodes_once(
    connection: &mut PgConnection,
    nodes: &[Uuid],
    reason: Option<&str>,
) -> Result<usize, sqlx::Error> {
    let mut tx = connection.begin_with(BEGIN_RESTLESS).await?;
    sqlx::query(sql::LOCK_RUNS).bind(nodes).execute(&mut *tx).await?;
    lock_pending(&mut tx, nodes).await?;
    // The engine and operators never seal their reasons, so every node gets the same text.
    let error = Sealer::default().seal_failure(&place_of_error(Uuid::nil(), ""), &failure(reason));
    let row = write(sql::CANCEL_NODES, |take| {
        sqlx::query(take).bind(nodes).bind(error.as_str()).fetch_one(&mut *tx)
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

/// Finishes what others have begun: requests that no worker is carrying out, and the cancelling below runs that have ended. Drops those that are done.
/// False where it has cancelled for as long as the budget says, and after each batch: what is left is found again.
#[cfg(feature = "worker")]
pub(crate) async fn carry_out(
    connection: &mut PgConnection,
    at_once: i64,
    budget: Duration,
) -> Result<bool, sqlx::Error> {
    let mut budget = Budget(Some(budget));
    let left: Vec<(Uuid, Option<String>, bool)> =
        sqlx::query_as(sql::CANCEL_LEFT).bind(at_once).fetch_all(&mut *connection).await?;
    for (run_id, reason, _) in left.iter().filter(|(.., ended)| !ended) {
        if budget.is_spent() {
            return Ok(false);
        }
        budget.spend(cancel(connection, *run_id, reason.as_deref(), By::Engine)).await?;
    }
    let runs: Vec<Uuid> = left.into_iter().map(|(run_id, ..)| run_id).collect();
    if runs.is_empty() {
        return Ok(true);
    }
    if !below(connection, &runs, None, &mut budget).await? {
        return Ok(false);
    }
    let forgotten =
        write(sql::CANCEL_FORGET, |forget| sqlx::query(forget).bind(&runs).execute(connection)).await?;
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

/// Cancelling a child wakes the parent that waits for it, which is locked after the child here; cancelling a node decides about those that need it.
async fn tell_above(tx: &mut PgConnection, run_id: Uuid, ended: bool) -> Result<(), sqlx::Error> {
    if !ended {
        return Ok(());
    }
    match above(&mut *tx, run_id).await? {
        Above::Nothing => Ok(()),
        Above::Graph(_) => release(tx, &[run_id]).await,
        Above::Parent(parent) => {
            sqlx::query(sql::LOCK_RUNS).bind(vec![parent]).execute(&mut *tx).await?;
            wake_parents(tx, &[run_id]).await
        }
    }
}
