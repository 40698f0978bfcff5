//! Waiting: starts children of workflows, suspends runs, and wakes them.

use std::collections::HashSet;

use sqlx::postgres::PgRow;
use sqlx::{Connection, PgConnection, Row};
use uuid::Uuid;

use super::checkpoint::{Checkpoint, Fence, bind_one};
use crate::model::payload::Stored;
use crate::model::run::request::MAX_DEPTH;
use crate::model::timestamp::Timestamp;
use crate::store::error::spares_others;
use crate::store::graph::{NewGraph, submit};
use crate::store::locks::{IfLocked, is_locked};
use crate::store::places::has_repaired;
use crate::store::run::enqueue::{NewRun, stored};
use crate::store::session::{BEGIN_QUEUED, BEGIN_RESTLESS, release_wake, roll_back_wake, save_wake};
use crate::store::sql;
use crate::store::write::{commit, of_steps, write};

/// The parent or the graph of a run. The end of the run may wake the parent, and counts in the
/// graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Above {
    /// The run has neither.
    Nothing,
    /// The run that started it, and that may wait for it.
    Parent(Uuid),
    /// The graph that it is a node of.
    Graph(Uuid),
}

impl Above {
    /// Reads the columns `parent_id` and `is_node` of a row.
    pub(crate) fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(match row.try_get("parent_id")? {
            None => Self::Nothing,
            Some(graph_id) if row.try_get("is_node")? => Self::Graph(graph_id),
            Some(parent_id) => Self::Parent(parent_id),
        })
    }
}

/// A child that a workflow starts.
#[derive(Debug)]
pub(crate) enum NewChild {
    Run(NewRun),
    Graph(NewGraph),
}

impl NewChild {
    /// The child's own run.
    pub(crate) fn run(&self) -> &NewRun {
        match self {
            Self::Run(run) => run,
            Self::Graph(graph) => &graph.run,
        }
    }

    /// The name of the job or of the graph.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Run(run) => &run.job,
            Self::Graph(graph) => &graph.name,
        }
    }
}

/// The result of starting a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Started {
    /// The child exists, and the step is recorded.
    Yes,
    /// The parent's lease is lost. Nothing was written.
    LeaseLost,
    /// The parent has a cancel request. Nothing was written.
    ParentCancelled,
    /// The chain of parents above the child has its maximum length. Nothing was written.
    TooDeep,
}

/// Starts a child and records the step that started it, both or neither.
pub(crate) async fn start_child(
    connection: &mut PgConnection,
    step: &Checkpoint,
    output: &str,
    child: &NewChild,
) -> Result<Started, sqlx::Error> {
    let graph = match child {
        NewChild::Run(run) => {
            return note_start(connection, step, output, run, MAX_DEPTH, false).await;
        }
        NewChild::Graph(graph) => graph,
    };
    let mut tx = connection.begin_with(BEGIN_RESTLESS).await?;
    // The nodes are one level deeper than the graph.
    let started = note_start(&mut tx, step, output, &graph.run, MAX_DEPTH - 1, true).await?;
    if started == Started::Yes {
        // The graph exists already if an earlier try took effect.
        submit(&mut tx, graph, Some(step.fence.run_id)).await?;
    }
    commit("start_graph", tx.commit()).await?;
    Ok(started)
}

/// Records the step that starts a run. Also creates the run, unless it is a graph.
async fn note_start(
    connection: &mut PgConnection,
    step: &Checkpoint,
    output: &str,
    child: &NewRun,
    max_depth: i16,
    is_graph: bool,
) -> Result<Started, sqlx::Error> {
    of_steps(std::iter::once(step.key.as_str()));
    let row = write(sql::START_CHILD, |start| {
        bind_one(sqlx::query(start), step)
            .bind(child.run_id)
            .bind(&child.job)
            .bind(&child.queue)
            .bind(child.priority)
            .bind(child.input.as_str())
            .bind(stored(&child.options))
            .bind(child.options.delay_us.unwrap_or(0))
            .bind(child.options.start_at())
            .bind(output)
            .bind(max_depth)
            .bind(is_graph)
            .fetch_optional(connection)
    })
    .await?;
    let Some(row) = row else { return Ok(Started::LeaseLost) };
    Ok(match (row.try_get("cancelled")?, row.try_get("too_deep")?) {
        (true, _) => Started::ParentCancelled,
        (false, true) => Started::TooDeep,
        (false, false) => Started::Yes,
    })
}

/// Returns the run at the top of the chain of parents of a run, or the run itself if it has no
/// parent.
pub(crate) async fn topmost(connection: &mut PgConnection, run_id: Uuid) -> Result<Uuid, sqlx::Error> {
    sqlx::query_scalar(sql::TOPMOST).bind(run_id).bind(MAX_DEPTH).fetch_one(connection).await
}

/// The events that a suspended run waits for. The first of them wakes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waits {
    /// The end of one of these children.
    pub(crate) any: Vec<Uuid>,
    /// The ends of all these children.
    pub(crate) all: Vec<Uuid>,
    /// A signal with one of these names.
    pub(crate) signals: Vec<String>,
    /// This instant.
    pub(crate) wake_at: Option<Timestamp>,
}

/// Continues a workflow as new, with another input. Returns false if the lease is lost.
pub(crate) async fn continue_run(
    connection: &mut PgConnection,
    fence: Fence,
    input: &Stored,
    delay_us: i64,
) -> Result<bool, sqlx::Error> {
    match continue_once(connection, fence, input, delay_us).await {
        Err(error) if has_repaired(connection, &error, &[fence.run_id]).await? => {
            continue_once(connection, fence, input, delay_us).await
        }
        done => done,
    }
}

async fn continue_once(
    connection: &mut PgConnection,
    fence: Fence,
    input: &Stored,
    delay_us: i64,
) -> Result<bool, sqlx::Error> {
    let mut tx = connection.begin_with(BEGIN_QUEUED).await?;
    // The record of a step that the code has dropped may be in flight. A snapshot from before its
    // commit would miss the step, and leave it to the next slice.
    sqlx::query(sql::LOCK_LEASE).bind(fence.run_id).bind(fence.token).execute(&mut *tx).await?;
    let row = write(sql::CONTINUE_RUN, |anew| {
        sqlx::query(anew)
            .bind(fence.run_id)
            .bind(fence.token)
            .bind(input.as_str())
            .bind(delay_us)
            .fetch_optional(&mut *tx)
    })
    .await?;
    commit("continuation", tx.commit()).await?;
    Ok(row.is_some())
}

/// Returns the parent or the graph of a run.
pub(crate) async fn above(connection: &mut PgConnection, run_id: Uuid) -> Result<Above, sqlx::Error> {
    let row = sqlx::query(sql::PARENT).bind(run_id).fetch_optional(connection).await?;
    row.as_ref().map_or(Ok(Above::Nothing), Above::read)
}

/// Wakes the parents that wait for these ended runs.
pub(crate) async fn wake_parents(connection: &mut PgConnection, ended: &[Uuid]) -> Result<(), sqlx::Error> {
    write(sql::WAKE_PARENTS, |wake| sqlx::query(wake).bind(ended).execute(connection)).await.map(drop)
}

/// Wakes the parent that waits for this ended run. Returns false if another session locks the
/// parent's row or the server refuses, for example because a trigger does not let the parent into
/// its queue. The transaction can then still be committed.
pub(crate) async fn try_wake_parent(tx: &mut PgConnection, ended: Uuid) -> Result<bool, sqlx::Error> {
    save_wake(tx).await?;
    match wake_parents(tx, &[ended]).await {
        Ok(()) => release_wake(tx).await.map(|()| true),
        Err(error) if spares_others(&error) => {
            tracing::warn!(%error, run_id = %ended, "the parent of an ended run cannot be queued yet; a worker tries again");
            roll_back_wake(tx).await.map(|()| false)
        }
        Err(error) => Err(error),
    }
}

/// Wakes waiting runs for which other transactions have brought an event. Returns the runs that
/// another transaction keeps locked.
pub(crate) async fn wake(
    connection: &mut PgConnection,
    runs: &[Uuid],
    if_locked: IfLocked,
) -> Result<Vec<Uuid>, sqlx::Error> {
    match wake_once(connection, runs, if_locked).await {
        Err(error) if is_locked(&error) => Ok(runs.to_vec()),
        Err(error) if has_repaired(connection, &error, runs).await? => {
            wake_once(connection, runs, if_locked).await
        }
        done => done,
    }
}

async fn wake_once(
    connection: &mut PgConnection,
    runs: &[Uuid],
    if_locked: IfLocked,
) -> Result<Vec<Uuid>, sqlx::Error> {
    let mut tx = if_locked.begin(connection).await?;
    let free: HashSet<Uuid> = if_locked.lock_runs(&mut tx, runs).await?.into_iter().collect();
    let (free, locked): (Vec<Uuid>, Vec<Uuid>) = runs.iter().partition(|run| free.contains(run));
    write(sql::WAKE_MET, |wake| sqlx::query(wake).bind(&free).execute(&mut *tx)).await?;
    commit("wake_stranded", tx.commit()).await?;
    // A transaction that waits for locks has locked every run that exists.
    Ok(if if_locked == IfLocked::Skip { locked } else { Vec::new() })
}
