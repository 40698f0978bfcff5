//! Statements that only workers execute. This file registers workers, takes session locks, sends
//! heartbeats, and marks dead workers.

pub(crate) mod cancel_requests;
pub mod claim;
pub(crate) mod deadlines;
pub(crate) mod orphans;
pub(crate) mod pauses;
pub mod pooler;
pub(crate) mod set_aside;
pub(crate) mod suspend;
pub(crate) mod wakes;

use std::collections::HashSet;
use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{Connection, PgConnection, PgExecutor, Row};
use tokio::time::Instant;
use uuid::Uuid;

use crate::model::run::settle::{Blame, Counters, TRIED, is_parked_by_crash};
use crate::model::timestamp::Timestamp;
use crate::store::attempt::checkpoint::Fence;
use crate::store::attempt::wait::Above;
use crate::store::session::BEGIN_BRIEF;
use crate::store::sql;
use crate::store::write::{commit, write};

/// The reply to a heartbeat.
#[derive(Debug)]
pub(crate) struct HeartbeatReply {
    /// False if this worker was marked dead. Other workers then reclaim its runs.
    pub(crate) alive: bool,
    /// Whether somebody asked the worker to drain.
    pub(crate) draining: bool,
    /// Claimed runs to cancel.
    pub(crate) cancels: Vec<Uuid>,
    /// Whether there are cancel requests for runs that no worker holds. A run may leave its worker
    /// before the worker sees the request.
    pub(crate) cancels_left: bool,
    /// Claimed runs to pause.
    pub(crate) pauses: Vec<Uuid>,
    /// Whether there are pause requests for runs that no worker holds.
    pub(crate) pauses_left: bool,
    /// Workers that missed a heartbeat.
    pub(crate) silent: Vec<i64>,
    /// The incarnation of the server.
    pub(crate) incarnation: String,
    /// Whether a wait has reached its limit.
    pub(crate) timers_due: bool,
    /// Whether a run has passed its deadline.
    pub(crate) deadlines_due: bool,
    /// Changes whenever an operator changes an override.
    pub(crate) overrides: String,
    /// Changes whenever an operator changes a configuration.
    pub(crate) configs: String,
    /// The database's clock.
    pub(crate) now: Timestamp,
    /// When this process received the reply. Maintenance may process it later.
    pub(crate) heard: Instant,
    /// The time since this worker's previous heartbeat, by the database's clock.
    pub(crate) gap: Duration,
}

/// A lease in the database.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) run_id: Uuid,
    pub(crate) token: Uuid,
    pub(crate) counters: Counters,
}

impl Lease {
    /// The right to write for its attempt.
    pub(crate) fn fence(&self) -> Fence {
        Fence { run_id: self.run_id, token: self.token }
    }
}

/// A lease whose worker is dead.
#[derive(Debug)]
pub(crate) struct Orphan {
    pub(crate) lease: Lease,
    pub(crate) above: Above,
    pub(crate) progressed: bool,
    pub(crate) cancel_requested: bool,
    /// Whether the crash of its worker counts against this run.
    pub(crate) blame: Blame,
}

/// How long a worker has been silent, and whether its session lock counts as evidence.
#[derive(Debug)]
pub(crate) struct Silence {
    pub(crate) seconds: f64,
    pub(crate) lock_is_evidence: bool,
    /// The incarnation of the server.
    pub(crate) incarnation: String,
}

pub(crate) async fn register(
    connection: &mut PgConnection,
    name: &str,
    session_name: &str,
    jobs: &[String],
    queues: &[String],
) -> Result<(i64, Timestamp), sqlx::Error> {
    write(sql::WORKER_REGISTER, |register| {
        sqlx::query_as(register)
            .bind(name)
            .bind(env!("CARGO_PKG_VERSION"))
            .bind(session_name)
            .bind(jobs)
            .bind(queues)
            .fetch_one(connection)
    })
    .await
}

/// Takes the worker's session lock on this connection. Returns false if another session holds the
/// lock.
pub(crate) async fn lock(connection: impl PgExecutor<'_>, worker_id: i64) -> Result<bool, sqlx::Error> {
    write(sql::WORKER_LOCK, |lock| sqlx::query_scalar(lock).bind(worker_id).fetch_one(connection)).await
}

/// Whether this session holds its worker's lock.
pub(crate) async fn lock_is_held(connection: impl PgExecutor<'_>) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(sql::LOCK_HELD).fetch_one(connection).await
}

/// Whether a run that this worker holds has a request to cancel or to pause.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedOf {
    pub(crate) cancel: bool,
    pub(crate) pause: bool,
}

pub(crate) async fn asked_of(connection: impl PgExecutor<'_>, run_id: Uuid) -> Result<AskedOf, sqlx::Error> {
    let (cancel, pause) = sqlx::query_as(sql::ASKED_OF).bind(run_id).fetch_one(connection).await?;
    Ok(AskedOf { cancel, pause })
}

/// Records the incarnation of the server in which the lock was taken.
pub(crate) async fn locked(connection: impl PgExecutor<'_>, worker_id: i64) -> Result<(), sqlx::Error> {
    write(sql::WORKER_LOCKED, |note| sqlx::query(note).bind(worker_id).execute(connection)).await.map(drop)
}

pub(crate) async fn heartbeat(
    connection: &mut PgConnection,
    worker_id: i64,
    overdue_after: f64,
    searches: bool,
) -> Result<HeartbeatReply, sqlx::Error> {
    let row = write(sql::HEARTBEAT, |beat| {
        sqlx::query(beat).bind(worker_id).bind(overdue_after).bind(searches).fetch_one(connection)
    })
    .await?;
    let now: Timestamp = row.try_get("now")?;
    let last: Option<Timestamp> = row.try_get("last")?;
    Ok(HeartbeatReply {
        alive: row.try_get("alive")?,
        draining: row.try_get("draining")?,
        cancels: row.try_get("cancels")?,
        cancels_left: row.try_get("cancels_left")?,
        pauses: row.try_get("pauses")?,
        pauses_left: row.try_get("pauses_left")?,
        silent: row.try_get("silent")?,
        incarnation: row.try_get("incarnation")?,
        timers_due: row.try_get("timers_due")?,
        deadlines_due: row.try_get("deadlines_due")?,
        overrides: row.try_get("overrides")?,
        configs: row.try_get("configs")?,
        now,
        heard: Instant::now(),
        gap: last.map_or(Duration::ZERO, |last| now.since(last)),
    })
}

pub(crate) async fn held(connection: &mut PgConnection, worker_id: i64) -> Result<Vec<Lease>, sqlx::Error> {
    let rows = sqlx::query(sql::HELD).bind(worker_id).fetch_all(connection).await?;
    rows.iter().map(lease).collect()
}

/// Returns the leases that no other transaction has locked at this moment.
pub(crate) async fn without_locked(
    connection: &mut PgConnection,
    leases: &[Lease],
) -> Result<Vec<Lease>, sqlx::Error> {
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    let runs: Vec<Uuid> = leases.iter().map(|lease| lease.run_id).collect();
    let free: Vec<Uuid> = sqlx::query_scalar(sql::FREE_LEASES).bind(runs).fetch_all(connection).await?;
    Ok(leases.iter().filter(|lease| free.contains(&lease.run_id)).copied().collect())
}

pub(crate) async fn sleeping(
    connection: &mut PgConnection,
    worker_id: i64,
    sleeping: bool,
) -> Result<(), sqlx::Error> {
    write(sql::WORKER_SLEEP, |say| sqlx::query(say).bind(worker_id).bind(sleeping).execute(connection))
        .await
        .map(drop)
}

pub(crate) async fn drain(connection: &mut PgConnection, worker_id: i64) -> Result<(), sqlx::Error> {
    write(sql::WORKER_DRAIN, |drain| sqlx::query(drain).bind(worker_id).execute(connection)).await.map(drop)
}

/// Records the run that a worker has on trial. `None` ends the trial.
pub(crate) async fn on_trial(
    connection: &mut PgConnection,
    worker_id: i64,
    run_id: Option<Uuid>,
) -> Result<(), sqlx::Error> {
    write(sql::WORKER_TRIAL, |note| sqlx::query(note).bind(worker_id).bind(run_id).execute(connection))
        .await
        .map(drop)
}

/// Returns how long a living worker has been silent. `None` if the worker is already dead.
pub(crate) async fn silence(
    connection: &mut PgConnection,
    worker_id: i64,
) -> Result<Option<Silence>, sqlx::Error> {
    let row =
        write(sql::SUSPECT, |look| sqlx::query(look).bind(worker_id).fetch_optional(connection)).await?;
    row.map(|row| {
        Ok(Silence {
            seconds: row.try_get("silence")?,
            lock_is_evidence: row.try_get("lock_is_evidence")?,
            incarnation: row.try_get("incarnation")?,
        })
    })
    .transpose()
}

/// Returns other living workers of this name, and whether their locks count as evidence.
pub(crate) async fn predecessors(
    connection: &mut PgConnection,
    name: &str,
    worker_id: i64,
) -> Result<Vec<(i64, bool)>, sqlx::Error> {
    let rows =
        write(sql::PREDECESSORS, |look| sqlx::query(look).bind(name).bind(worker_id).fetch_all(connection))
            .await?;
    rows.iter().map(|row| Ok((row.try_get("worker_id")?, row.try_get("lock_is_evidence")?))).collect()
}

/// Marks a worker dead and ends its sessions, if its lock is free and it has been silent for
/// `seconds`. The transaction holds the lock until the commit, so the worker cannot take it in
/// between.
pub(crate) async fn bury_if_unlocked(
    connection: &mut PgConnection,
    worker_id: i64,
    seconds: f64,
    why: &str,
) -> Result<bool, sqlx::Error> {
    let mut tx = connection.begin_with(BEGIN_BRIEF).await?;
    let free: bool = sqlx::query_scalar(sql::LOCK_IS_FREE).bind(worker_id).fetch_one(&mut *tx).await?;
    let buried = free && bury_with_sessions(&mut tx, worker_id, seconds, why).await?;
    commit("burial_by_lock", tx.commit()).await?;
    Ok(buried)
}

/// Marks a worker dead and ends its sessions, if it has been silent for `seconds`. Ignores its
/// lock.
pub(crate) async fn bury_if_silent(
    connection: &mut PgConnection,
    worker_id: i64,
    seconds: f64,
    why: &str,
) -> Result<bool, sqlx::Error> {
    let mut tx = connection.begin_with(BEGIN_BRIEF).await?;
    let buried = bury_with_sessions(&mut tx, worker_id, seconds, why).await?;
    commit("burial_by_silence", tx.commit()).await?;
    Ok(buried)
}

/// Marks a worker dead and ends its sessions in one transaction. A paused process may hold rows in
/// an open transaction, and nothing examines a dead worker again.
async fn bury_with_sessions(
    tx: &mut PgConnection,
    worker_id: i64,
    seconds: f64,
    why: &str,
) -> Result<bool, sqlx::Error> {
    let buried = mark_dead(tx, worker_id, seconds, why).await?;
    if buried {
        end_sessions(tx, worker_id).await?;
    }
    Ok(buried)
}

/// Marks a worker dead if it has been silent for `seconds`.
pub(crate) async fn mark_dead(
    connection: &mut PgConnection,
    worker_id: i64,
    seconds: f64,
    why: &str,
) -> Result<bool, sqlx::Error> {
    let buried = write(sql::WORKER_BURY, |bury| {
        sqlx::query(bury).bind(worker_id).bind(seconds).bind(why).fetch_optional(connection)
    });
    Ok(buried.await?.is_some())
}

/// Sets the last heartbeat of workers to now, if it lies more than `seconds` in the future. Their
/// silence then begins now.
pub(crate) async fn clamp_future_heartbeats(
    connection: &mut PgConnection,
    seconds: f64,
) -> Result<(), sqlx::Error> {
    write(sql::WORKER_PULL_BACK, |pull| sqlx::query(pull).bind(seconds).execute(connection)).await.map(drop)
}

/// Ends the sessions of a dead worker.
async fn end_sessions(connection: &mut PgConnection, worker_id: i64) -> Result<i64, sqlx::Error> {
    write(sql::END_SESSIONS, |end| sqlx::query_scalar(end).bind(worker_id).fetch_one(connection)).await
}

/// Finds runs whose worker is dead, except the runs to leave out.
pub(crate) async fn orphaned(
    connection: &mut PgConnection,
    limit: i64,
    left_out: &[Uuid],
) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar(sql::ORPHANED).bind(limit).bind(left_out).fetch_all(connection).await
}

/// Returns the leases of the runs whose worker is dead. They are locked until the end of the
/// transaction.
pub(crate) async fn orphans(tx: &mut PgConnection, runs: &[Uuid]) -> Result<Vec<Orphan>, sqlx::Error> {
    let rows = sqlx::query(sql::ORPHANS).bind(runs).fetch_all(&mut *tx).await?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let leases = rows.iter().map(lease).collect::<Result<Vec<_>, _>>()?;
    let run_ids: Vec<Uuid> = leases.iter().map(|lease| lease.run_id).collect();
    let progressed: HashSet<Uuid> =
        sqlx::query_scalar(sql::PROGRESSED).bind(run_ids).fetch_all(&mut *tx).await?.into_iter().collect();
    let orphan = |(row, lease): (&PgRow, Lease)| {
        Ok(Orphan {
            above: Above::read(row)?,
            progressed: progressed.contains(&lease.run_id),
            cancel_requested: row.try_get("cancel_requested")?,
            blame: blame(row.try_get("has_stopped")?, row.try_get("trial")?, lease.run_id),
            lease,
        })
    };
    let mut orphans: Vec<Orphan> = rows.iter().zip(leases).map(orphan).collect::<Result<_, sqlx::Error>>()?;
    for orphan in &mut orphans {
        if orphan.blame == Blame::Alone
            && is_parked_by_crash(orphan.lease.counters.crashes, orphan.progressed)
            && has_companion(tx, orphan.lease.run_id).await?
        {
            orphan.blame = Blame::NotAlone;
        }
    }
    Ok(orphans)
}

/// Whether one other run was in the last crashes of this run too, and may have caused them.
async fn has_companion(tx: &mut PgConnection, run_id: Uuid) -> Result<bool, sqlx::Error> {
    let n_earlier = i64::from(TRIED - 1);
    sqlx::query_scalar(sql::COMPANION).bind(run_id).bind(n_earlier).fetch_one(tx).await
}

fn blame(has_stopped: bool, trial: Option<Uuid>, run_id: Uuid) -> Blame {
    match trial {
        _ if has_stopped => Blame::None,
        None => Blame::Shared,
        Some(trial) if trial == run_id => Blame::Alone,
        Some(_) => Blame::BesideTrial,
    }
}

fn lease(row: &PgRow) -> Result<Lease, sqlx::Error> {
    Ok(Lease {
        run_id: row.try_get("run_id")?,
        token: row.try_get("token")?,
        counters: Counters { attempt: row.try_get("attempt")?, crashes: row.try_get("crashes")? },
    })
}
