//! Workers: registration, the session lock, heartbeats, and the burial of those that are gone.

use std::collections::HashSet;
use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{Connection, PgConnection, PgExecutor, Row};
use tokio::time::Instant;
use uuid::Uuid;

use super::checkpoint::Fence;
use super::session::BEGIN_BRIEF;
use super::sql;
use super::wait::Above;
use super::write::{commit, write};
use crate::model::settle::{Blame, Counters, TRIED, is_parked_by_crash};
use crate::model::timestamp::Timestamp;

/// What a heartbeat brings back.
#[derive(Debug)]
pub(crate) struct HeartbeatReply {
    /// False: this worker was declared dead; its runs are being given to others.
    pub(crate) alive: bool,
    /// Whether somebody asked it to drain.
    pub(crate) draining: bool,
    /// Runs that it holds and that are to be cancelled.
    pub(crate) cancels: Vec<Uuid>,
    /// Whether there are cancel requests for runs that nobody holds. A run may have left its worker before the worker heard of
    /// its request.
    pub(crate) cancels_left: bool,
    /// Runs that it holds and that are to be paused.
    pub(crate) pauses: Vec<Uuid>,
    /// Whether runs that nobody holds are to be paused.
    pub(crate) pauses_left: bool,
    /// Workers that miss a heartbeat.
    pub(crate) silent: Vec<i64>,
    /// The incarnation of the server.
    pub(crate) incarnation: String,
    /// Whether a wait has come to its limit.
    pub(crate) timers_due: bool,
    /// Whether the deadline of a run is over.
    pub(crate) deadlines_due: bool,
    /// What changes whenever an operator says something else of a job.
    pub(crate) tunings: String,
    /// What changes whenever an operator configures a job otherwise.
    pub(crate) configs: String,
    /// The database's clock.
    pub(crate) now: Timestamp,
    /// When it was heard here. It may wait before maintenance comes to it.
    pub(crate) heard: Instant,
    /// Since the heartbeat of this worker that was carried out before, by the database's clock.
    pub(crate) gap: Duration,
}

/// A lease as the database has it.
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

/// How silent a worker is, and whether its lock says anything.
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

/// Takes the worker's session lock on this connection. False where another session has the key.
pub(crate) async fn lock(connection: impl PgExecutor<'_>, worker_id: i64) -> Result<bool, sqlx::Error> {
    write(sql::WORKER_LOCK, |lock| sqlx::query_scalar(lock).bind(worker_id).fetch_one(connection)).await
}

/// Whether this session has its worker's lock.
pub(crate) async fn lock_is_held(connection: impl PgExecutor<'_>) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(sql::LOCK_HELD).fetch_one(connection).await
}

/// Whether a run that this worker holds is to be cancelled or paused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedOf {
    pub(crate) cancel: bool,
    pub(crate) pause: bool,
}

pub(crate) async fn asked_of(connection: impl PgExecutor<'_>, run_id: Uuid) -> Result<AskedOf, sqlx::Error> {
    let (cancel, pause) = sqlx::query_as(sql::ASKED_OF).bind(run_id).fetch_one(connection).await?;
    Ok(AskedOf { cancel, pause })
}

/// Notes the incarnation in which the lock was taken.
pub(crate) async fn locked(connection: impl PgExecutor<'_>, worker_id: i64) -> Result<(), sqlx::Error> {
    write(sql::WORKER_LOCKED, |note| sqlx::query(note).bind(worker_id).execute(connection)).await.map(drop)
}

pub(crate) async fn heartbeat(
    connection: &mut PgConnection,
    worker_id: i64,
    overdue_after: f64,
) -> Result<HeartbeatReply, sqlx::Error> {
    let row = write(sql::HEARTBEAT, |beat| {
        sqlx::query(beat).bind(worker_id).bind(overdue_after).fetch_one(connection)
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
        tunings: row.try_get("tunings")?,
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

/// The given leases that no other transaction has locked at this moment.
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

/// Records the run that a worker has on trial; `None` ends the trial.
pub(crate) async fn on_trial(
    connection: &mut PgConnection,
    worker_id: i64,
    run_id: Option<Uuid>,
) -> Result<(), sqlx::Error> {
    write(sql::WORKER_TRIAL, |note| sqlx::query(note).bind(worker_id).bind(run_id).execute(connection))
        .await
        .map(drop)
}

/// How silent a living worker is; none where it is dead already.
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

/// Living workers of this name, and whether their locks say anything.
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

/// Declares a worker dead if its lock is free and it is still silent for `seconds`, and ends its sessions. The lock is held until the burial has
/// committed, so that the worker cannot take it again in between.
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

/// Declares a worker dead whatever its lock says, if it is still silent for `seconds`, and ends its sessions.
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

/// A paused process may hold rows in an open transaction. Both in one: nobody looks at a dead worker again.
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

/// Declares a worker dead if it is still silent for `seconds`.
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

/// Lets the silence of workers begin now whose last heartbeat lies more than so many seconds in the future.
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

/// Runs whose worker is dead, but for some.
pub(crate) async fn orphaned(
    connection: &mut PgConnection,
    limit: i64,
    left_out: &[Uuid],
) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar(sql::ORPHANED).bind(limit).bind(left_out).fetch_all(connection).await
}

/// The leases of those of these runs whose worker is dead. They are locked until the end of the transaction.
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

/// Whether one other run was in the last crashes of a run, too, and may have caused them.
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
