//! Settle: writes the new states of runs whose attempts ended, many in one statement.

use std::collections::HashSet;

use sqlx::postgres::PgRow;
use sqlx::{Connection, PgConnection, Row};
use uuid::Uuid;

use crate::model::payload::{Sealer, Stored};
use crate::model::replay::recorded::place_of_error;
use crate::model::run::failure::Failure;
use crate::model::run::settle::{Cause, Counters, Due, Settlement, Verdict};
use crate::model::run::state::RunState;
use crate::model::timestamp::Timestamp;
use crate::store::attempt::checkpoint::{Fence, held};
use crate::store::attempt::wait::{Above, try_wake_parent, wake_parents};
use crate::store::error::spares_others;
use crate::store::graph::release;
use crate::store::locks::IfLocked;
use crate::store::places::has_repaired;
use crate::store::session::{BEGIN, is_read_committed, limit_locks, restore_lock_limit};
use crate::store::sql;
use crate::store::write;

/// A settlement to write.
#[derive(Clone, Debug)]
pub(crate) struct Settled {
    pub(crate) fence: Fence,
    counters: Counters,
    state: RunState,
    output: Option<Stored>,
    error: Option<Stored>,
    delay_us: Option<i64>,
    due_at: Option<Timestamp>,
    cause: Option<&'static str>,
    /// The parent or the graph of the run.
    above: Above,
    /// Whether steps of the run may have to be compensated.
    may_undo: bool,
}

/// The result of a batch of settlements.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// The settlements whose fence held.
    pub(crate) written: HashSet<Fence>,
    /// The parents to wake afterwards: other transactions keep them locked.
    pub(crate) owed: Vec<Uuid>,
}

/// When the parents of ended runs are woken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wake {
    InTheSameTransaction,
    Afterwards,
}

/// Writes settlements. It locks the parents of ended runs first and wakes them in the same
/// transaction. Ended nodes of graphs release their dependents in it. If another transaction keeps
/// a parent locked, the caller wakes the parent afterwards. A settlement of a single run that fails
/// is repeated, and the caller wakes its parent afterwards: a trigger may refuse to queue the
/// parent.
pub(crate) async fn settle(connection: &mut PgConnection, items: &[&Settled]) -> Result<Batch, sqlx::Error> {
    let runs = || items.iter().map(|item| item.fence.run_id).collect::<Vec<_>>();
    match settle_once(connection, items, Wake::InTheSameTransaction).await {
        Err(error) if has_repaired(connection, &error, &runs()).await? => {
            settle_once(connection, items, Wake::InTheSameTransaction).await
        }
        Err(error) if spares_others(&error) && is_alone_with_a_parent(items) => {
            settle_once(connection, items, Wake::Afterwards).await
        }
        done => done,
    }
}

fn is_alone_with_a_parent(items: &[&Settled]) -> bool {
    matches!(items, [item] if item.parent_to_wake().is_some())
}

async fn settle_once(
    connection: &mut PgConnection,
    items: &[&Settled],
    wake: Wake,
) -> Result<Batch, sqlx::Error> {
    let mut parents: Vec<Uuid> = items.iter().filter_map(|item| item.parent_to_wake()).collect();
    let to_lock: Vec<Fence> =
        items.iter().filter(|item| item.may_undo && fails(item)).map(|item| item.fence).collect();
    let has_nodes = items.iter().any(|item| is_node(item) && ends(item));
    if parents.is_empty() && to_lock.is_empty() && !has_nodes {
        return Ok(Batch { written: write(connection, items, None).await?, owed: Vec::new() });
    }
    parents.sort_unstable();
    parents.dedup();
    let mut tx = connection.begin_with(BEGIN).await?;
    let mut free = HashSet::new();
    if !parents.is_empty() && wake == Wake::InTheSameTransaction {
        free.extend(IfLocked::Skip.lock_runs(&mut tx, &parents).await?);
    }
    for fence in to_lock {
        // With this lock, the next statement sees a step that is being recorded now, with its
        // compensation.
        sqlx::query(sql::LOCK_LEASE).bind(fence.run_id).bind(fence.token).execute(&mut *tx).await?;
    }
    let written = write(&mut tx, items, None).await?;
    let ended = || items.iter().filter(|item| ends(item) && written.contains(&item.fence));
    let above = |item: &&Settled| parent(item).map(|parent| (item.fence.run_id, parent));
    let (heard, unheard): (Vec<_>, Vec<_>) =
        ended().filter_map(above).partition(|(_, parent)| free.contains(parent));
    if !heard.is_empty() {
        wake_parents(&mut tx, &heard.into_iter().map(|(child, _)| child).collect::<Vec<_>>()).await?;
    }
    let nodes: Vec<Uuid> = ended().filter(|item| is_node(item)).map(|item| item.fence.run_id).collect();
    if !nodes.is_empty() {
        release(&mut tx, &nodes).await?;
    }
    write::commit("settle_and_wake", tx.commit()).await?;
    Ok(Batch { written, owed: unheard.into_iter().map(|(_, parent)| parent).collect() })
}

/// The reason for cancelling the descendants of a failed run. `settle.sql` has the same text.
pub(crate) const FAILED_ABOVE: &str = "a run above it has failed";

/// The cause in `settle.sql` with which a failure replaces the recorded one.
const REFUSED: &str = "refused";

/// The result of a settlement in the transaction of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InBody {
    /// The settlement takes effect with the commit. Then wake these runs: a parent that another
    /// transaction keeps locked, or that cannot be queued. If this transaction may not see who
    /// waits, they are the parent and the run itself.
    Written(Vec<Uuid>),
    /// The fence is lost, or the connection is not in the transaction with this marker.
    Refused,
}

/// Writes a settlement in the open transaction of a transactional job.
pub(crate) async fn settle_in(
    tx: &mut PgConnection,
    item: &Settled,
    body: &str,
) -> Result<InBody, sqlx::Error> {
    let mut owed = Vec::new();
    if let Some(parent) = item.parent_to_wake()
        && IfLocked::Skip.lock_runs(tx, &[parent]).await?.is_empty()
    {
        owed.push(parent);
    }
    let rows = write_any(tx, &[item], Some(body)).await?;
    let Some(row) = rows.first() else { return Ok(InBody::Refused) };
    if ends(item) {
        // An older snapshot shows neither a parent nor a client that has begun to wait since.
        let sees_all = is_read_committed(row.try_get("isolation")?);
        if !sees_all {
            owed = parent(item).into_iter().chain([item.fence.run_id]).collect();
        }
        match item.above {
            Above::Parent(parent) if owed.is_empty() => {
                if !Box::pin(try_wake_parent(tx, item.fence.run_id)).await? {
                    owed.push(parent);
                }
            }
            Above::Nothing | Above::Parent(_) => {}
            Above::Graph(graph_id) => {
                limit_locks(tx).await?;
                release(tx, &[item.fence.run_id]).await?;
                sqlx::query(sql::SEEN_WHOLE).bind(graph_id).execute(&mut *tx).await?;
                restore_lock_limit(tx).await?;
            }
        }
    }
    Ok(InBody::Written(owed))
}

pub(crate) async fn write(
    connection: &mut PgConnection,
    items: &[&Settled],
    body: Option<&str>,
) -> Result<HashSet<Fence>, sqlx::Error> {
    if body.is_none()
        && let Some(outputs) = outputs(items)
    {
        return write_completed(connection, items, &outputs).await;
    }
    write_any(connection, items, body)
        .await?
        .iter()
        .map(|row| Ok(Fence { run_id: row.try_get("run_id")?, token: row.try_get("token")? }))
        .collect()
}

/// Writes settlements of every kind. Returns a row for each settlement whose fence held.
async fn write_any(
    connection: &mut PgConnection,
    items: &[&Settled],
    body: Option<&str>,
) -> Result<Vec<PgRow>, sqlx::Error> {
    write::write(sql::SETTLE, |settle| {
        sqlx::query(settle)
            .bind(items.iter().map(|item| item.fence.run_id).collect::<Vec<_>>())
            .bind(items.iter().map(|item| item.fence.token).collect::<Vec<_>>())
            .bind(items.iter().map(|item| item.state.as_str()).collect::<Vec<_>>())
            .bind(items.iter().map(|item| item.output.as_ref().map(Stored::as_str)).collect::<Vec<_>>())
            .bind(items.iter().map(|item| item.error.as_ref().map(Stored::as_str)).collect::<Vec<_>>())
            .bind(items.iter().map(|item| item.delay_us).collect::<Vec<_>>())
            .bind(items.iter().map(|item| item.due_at).collect::<Vec<_>>())
            .bind(items.iter().map(|item| item.cause).collect::<Vec<_>>())
            .bind(items.iter().map(|item| item.counters.attempt).collect::<Vec<_>>())
            .bind(items.iter().map(|item| item.counters.crashes).collect::<Vec<_>>())
            .bind(body)
            .fetch_all(connection)
    })
    .await
}

/// Writes settlements that all complete their runs. Nearly every batch has only such settlements.
async fn write_completed(
    connection: &mut PgConnection,
    items: &[&Settled],
    outputs: &[&str],
) -> Result<HashSet<Fence>, sqlx::Error> {
    let row = write::write(sql::SETTLE_COMPLETED, |complete| {
        sqlx::query(complete)
            .bind(items.iter().map(|item| item.fence.run_id).collect::<Vec<_>>())
            .bind(items.iter().map(|item| item.fence.token).collect::<Vec<_>>())
            .bind(outputs)
            .fetch_one(connection)
    });
    let held = held(&row.await?, items.len())?;
    Ok(items.iter().zip(held).filter(|(_, held)| *held).map(|(item, _)| item.fence).collect())
}

/// Returns the outputs if every settlement completes its run.
fn outputs<'a>(items: &[&'a Settled]) -> Option<Vec<&'a str>> {
    items.iter().map(|item| item.output.as_ref().map(Stored::as_str)).collect()
}

fn fails(item: &Settled) -> bool {
    matches!(item.state, RunState::Failed | RunState::Cancelled)
}

/// The run that may wait for it.
fn parent(item: &Settled) -> Option<Uuid> {
    match item.above {
        Above::Parent(parent) => Some(parent),
        Above::Nothing | Above::Graph(_) => None,
    }
}

fn is_node(item: &Settled) -> bool {
    matches!(item.above, Above::Graph(_))
}

pub(crate) fn ends(item: &Settled) -> bool {
    item.state.is_terminal()
}

impl Settled {
    /// The parent that the end of this run may wake.
    pub(crate) fn parent_to_wake(&self) -> Option<Uuid> {
        parent(self).filter(|_| ends(self))
    }

    /// The size of its payloads in bytes.
    pub(crate) fn n_bytes(&self) -> usize {
        [&self.output, &self.error].into_iter().flatten().map(Stored::n_bytes).sum()
    }

    /// Creates the settlement of a run without a parent and without steps to compensate.
    pub(crate) fn new(fence: Fence, settlement: Settlement, sealer: &Sealer) -> Self {
        let Settlement { verdict, counters } = settlement;
        let sealed = |failure: Failure| sealer.seal_failure(&place_of_error(fence.run_id, ""), &failure);
        let ended = |state, failure: Option<Failure>| Self {
            fence,
            counters,
            state,
            output: None,
            error: failure.map(sealed),
            delay_us: None,
            due_at: None,
            cause: None,
            above: Above::Nothing,
            may_undo: false,
        };
        match verdict {
            Verdict::Complete(output) => Self { output: Some(output), ..ended(RunState::Completed, None) },
            Verdict::Fail(failure) => ended(RunState::Failed, Some(failure)),
            Verdict::Cancel(failure) => ended(RunState::Cancelled, Some(failure)),
            Verdict::Block(failure) => ended(RunState::Blocked, Some(failure)),
            Verdict::Pause => Self {
                delay_us: Some(0),
                cause: Some(Cause::Resumed.as_str()),
                ..ended(RunState::Paused, None)
            },
            Verdict::Requeue { due, cause, failure } => {
                let (delay_us, due_at) = match due {
                    Due::In(delay) => (Some(i64::try_from(delay.as_micros()).unwrap_or(i64::MAX)), None),
                    Due::At(instant) => (None, Some(instant)),
                };
                Self { delay_us, due_at, cause: Some(cause.as_str()), ..ended(RunState::Queued, failure) }
            }
        }
    }

    /// Sets the parent or the graph of the run.
    pub(crate) fn below(self, above: Above) -> Self {
        Self { above, ..self }
    }

    /// Sets whether steps of the run may have to be compensated.
    pub(crate) fn of_saga(self, may_undo: bool) -> Self {
        Self { may_undo, ..self }
    }

    /// Stores the failure in place of the recorded one, which the database has refused.
    pub(crate) fn after_refusal(self) -> Self {
        let ends = matches!(self.state, RunState::Failed | RunState::Cancelled);
        Self { cause: if ends { Some(REFUSED) } else { self.cause }, ..self }
    }

    /// Whether it completes its run.
    pub(crate) fn completes(&self) -> bool {
        self.state == RunState::Completed
    }
}
