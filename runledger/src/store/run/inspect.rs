//! Reads runs, their attempts and their steps, for people and tools.

use std::fmt;
use std::time::SystemTime;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::model::graph::{GRAPH, MAP};
use crate::model::payload::{Place, Sealer, Stored};
use crate::model::replay::recorded::place_of_error;
use crate::model::run::failure::Failure;
use crate::model::run::request::Metadata;
use crate::model::run::state::RunState;
use crate::model::run::version::{listed, others, parts};
use crate::model::timestamp::Timestamp;
use crate::store::sql;
use crate::store::write::write;

/// One run, without its input and output.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RunInfo {
    /// Its id.
    pub run_id: Uuid,
    /// The name of its job.
    pub job: String,
    /// The version of the job's code that the run is pinned to. It is stored with the name:
    /// `checkout@2`, and `checkout` for the first.
    pub version: u32,
    /// Its tenant; empty for none.
    pub tenant: String,
    /// Its queue.
    pub queue: String,
    /// Its priority. Workers claim higher priorities first.
    pub priority: i16,
    /// Its idempotency key.
    pub idempotency_key: Option<String>,
    /// The run that started this run.
    pub parent_id: Option<Uuid>,
    /// The run that this run was created from by [`rerun`](crate::RunHandle::rerun),
    /// [`fork`](crate::RunHandle::fork) or [`revive`](crate::RunHandle::revive).
    pub origin_id: Option<Uuid>,
    /// When it was enqueued.
    pub created_at: SystemTime,
    /// Its state.
    pub state: RunState,
    /// The number of attempts, including the current one. Attempts that ended by a crash, a
    /// suspension or a shutdown do not count.
    pub attempt: i32,
    /// Consecutive crashes of its process that the run may have caused. A recorded step or a
    /// finished attempt resets the count.
    pub crashes: i32,
    /// Why it is queued, while it is queued.
    pub cause: Option<String>,
    /// When it may be claimed, while it is queued. While it is paused: the earliest instant at
    /// which it may be claimed.
    pub ready_at: Option<SystemTime>,
    /// The worker that holds it or ended it.
    pub worker_id: Option<i64>,
    /// When its current or last attempt began.
    pub started_at: Option<SystemTime>,
    /// When it ended.
    pub finished_at: Option<SystemTime>,
    /// The error that it failed with, or that blocks it.
    pub error: Option<Failure>,
    /// Whether it compensates, before it fails or is cancelled.
    pub compensating: bool,
    /// Why it is paused, while it is.
    pub pause_reason: Option<String>,
    /// The names of the signals that it waits for, while it is suspended.
    pub awaited_signals: Vec<String>,
    /// The metadata that it was enqueued with.
    pub metadata: Metadata,
}

/// An attempt of a run, or a failed attempt of a step.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AttemptInfo {
    /// The number of the attempt, from 1.
    pub attempt: i32,
    /// The step; empty for an attempt of the run itself.
    pub step_key: String,
    /// The worker.
    pub worker_id: i64,
    /// The name of the worker.
    pub worker: Option<String>,
    /// When it began.
    pub started_at: Option<SystemTime>,
    /// When it ended.
    pub ended_at: SystemTime,
    /// The error; `None` for the attempt that completed the run.
    pub error: Option<Failure>,
}

/// A recorded step. `Debug` does not show the output.
#[derive(Clone)]
#[non_exhaustive]
pub struct StepInfo {
    /// Its key.
    pub key: String,
    /// Its place in the order in which the code claimed its steps, from 0.
    pub ordinal: i64,
    /// Its output as JSON text, or the failure that the workflow's code received. If this program
    /// lacks the codec or the key, the output is shown as it is stored: an object with the key
    /// `$sealed`.
    pub result: Result<String, Failure>,
    /// The claim of the run under which the step was recorded, from 1. A run that was never
    /// interrupted has one claim. The claim is 0 for a step that was copied from the run's origin.
    pub claim: i32,
    /// When it was recorded.
    pub recorded_at: SystemTime,
}

/// A living worker process.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerInfo {
    /// Its number.
    pub worker_id: i64,
    /// Its name.
    pub name: String,
    /// The version of Runledger that it runs.
    pub version: String,
    /// The jobs that it serves, by the stored names of their runs. `checkout@2` is version 2 of
    /// `checkout`, and `checkout` is the first version.
    pub jobs: Vec<String>,
    /// The queues that it serves.
    pub queues: Vec<String>,
    /// Whether it claims no new runs.
    pub draining: bool,
    /// Its last heartbeat.
    pub heartbeat_at: SystemTime,
    /// The number of runs that it holds.
    pub n_held: i64,
}

/// A version of a job with queued runs in a queue that no living worker serves.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnservedJob {
    /// The queue.
    pub queue: String,
    /// The name of the job.
    pub job: String,
    /// The version of the job's code that the runs are pinned to.
    pub version: u32,
    /// The other versions of the job that living workers serve.
    pub other_versions: Vec<u32>,
    /// Whether living workers serve this version of the job in other queues.
    pub serves_elsewhere: bool,
}

impl fmt::Display for UnservedJob {
    /// Describes the waiting runs and what to do about them, as a sentence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, job, version, other_versions, serves_elsewhere } = self;
        write!(
            f,
            "runs of `{job}`, version {version}, wait in the queue `{queue}`, and no living worker serves them: "
        )?;
        if *serves_elsewhere {
            return write!(f, "its workers serve other queues; name `{queue}` in `App::queues`");
        }
        if other_versions.is_empty() {
            return f.write_str("start one that has its code");
        }
        write!(
            f,
            "they serve {} of it; start one that has version {version}, or whose code accepts it (`accepts = [{version}]`), or move the runs with `RunHandle::pin`",
            listed(other_versions)
        )
    }
}

/// The state of a run, with its outcome, or with the error that blocks it.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) state: RunState,
    pub(crate) output: Option<Stored>,
    pub(crate) failure: Option<Stored>,
}

pub(crate) async fn run(
    connection: &mut PgConnection,
    run_id: Uuid,
    sealer: &Sealer,
) -> Result<Option<RunInfo>, sqlx::Error> {
    let row = sqlx::query(sql::RUN).bind(run_id).fetch_optional(connection).await?;
    row.map(|row| run_info(&row, sealer)).transpose()
}

pub(crate) async fn attempts(
    connection: &mut PgConnection,
    run_id: Uuid,
    sealer: &Sealer,
) -> Result<Vec<AttemptInfo>, sqlx::Error> {
    let rows = sqlx::query(sql::ATTEMPTS).bind(run_id).fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            let step_key: String = row.try_get("step_key")?;
            let error = stored(row, "error")?;
            Ok(AttemptInfo {
                attempt: row.try_get("attempt")?,
                error: error.map(|error| sealer.show_failure(&place_of_error(run_id, &step_key), &error)),
                step_key,
                worker_id: row.try_get("worker_id")?,
                worker: row.try_get("worker")?,
                started_at: instant(row, "started_at")?,
                ended_at: row.try_get::<Timestamp, _>("ended_at")?.into(),
            })
        })
        .collect()
}

pub(crate) async fn steps(
    connection: &mut PgConnection,
    run_id: Uuid,
    sealer: &Sealer,
) -> Result<Vec<StepInfo>, sqlx::Error> {
    let rows = sqlx::query(sql::STEPS).bind(run_id).fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            let key: String = row.try_get("key")?;
            let result = match stored(row, "error")? {
                Some(error) => Err(sealer.show_failure(&place_of_error(run_id, &key), &error)),
                None => Ok(sealer.show(&Place::of_step(run_id, &key), Stored::read(row.try_get("output")?))),
            };
            Ok(StepInfo {
                key,
                ordinal: row.try_get("ordinal")?,
                result,
                claim: row.try_get("claims")?,
                recorded_at: row.try_get::<Timestamp, _>("recorded_at")?.into(),
            })
        })
        .collect()
}

pub(crate) async fn workers(connection: &mut PgConnection) -> Result<Vec<WorkerInfo>, sqlx::Error> {
    let rows = sqlx::query(sql::WORKERS).fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            let mut jobs: Vec<String> = row.try_get("jobs")?;
            // Every worker serves these jobs of the engine.
            jobs.retain(|job| ![GRAPH, MAP].contains(&job.as_str()));
            Ok(WorkerInfo {
                worker_id: row.try_get("worker_id")?,
                name: row.try_get("name")?,
                version: row.try_get("version")?,
                jobs,
                queues: row.try_get("queues")?,
                draining: row.try_get::<&str, _>("state")? == "draining",
                heartbeat_at: row.try_get::<Timestamp, _>("heartbeat_at")?.into(),
                n_held: row.try_get("n_held")?,
            })
        })
        .collect()
}

/// Lists the jobs with queued runs that no living worker serves.
pub(crate) async fn unserved(connection: &mut PgConnection) -> Result<Vec<UnservedJob>, sqlx::Error> {
    let rows = sqlx::query(sql::UNSERVED).fetch_all(&mut *connection).await?;
    let known = if rows.is_empty() { Vec::new() } else { jobs_known(connection).await? };
    let unserved = |row: &PgRow| {
        let stored: &str = row.try_get("job")?;
        let (job, version) = parts(stored);
        let other_versions = others(stored, known.iter().map(String::as_str));
        let serves_elsewhere = known.iter().any(|known| known == stored);
        Ok(UnservedJob {
            queue: row.try_get("queue")?,
            job: job.to_owned(),
            version,
            other_versions,
            serves_elsewhere,
        })
    };
    rows.iter().map(unserved).collect()
}

/// Lists every job that a living worker serves.
pub(crate) async fn jobs_known(connection: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar(sql::JOBS_KNOWN).fetch_all(connection).await
}

/// Returns the state and the outcome of a run. `None` if the run does not exist.
pub(crate) async fn end_of_run(
    connection: &mut PgConnection,
    run_id: Uuid,
) -> Result<Option<End>, sqlx::Error> {
    let row = sqlx::query(sql::END_OF_RUN).bind(run_id).fetch_optional(connection).await?;
    row.map(|row| {
        Ok(End { state: state(&row)?, output: stored(&row, "output")?, failure: stored(&row, "error")? })
    })
    .transpose()
}

/// Requests a notification when a run ends or is blocked.
pub(crate) async fn watch(connection: &mut PgConnection, run_id: Uuid) -> Result<(), sqlx::Error> {
    write(sql::WATCH, |watch| sqlx::query(watch).bind(run_id).execute(connection)).await.map(drop)
}

pub(super) fn run_info(row: &PgRow, sealer: &Sealer) -> Result<RunInfo, sqlx::Error> {
    let run_id = row.try_get("run_id")?;
    let (job, version) = parts(row.try_get("job")?);
    Ok(RunInfo {
        run_id,
        job: job.to_owned(),
        version,
        tenant: row.try_get("tenant")?,
        queue: row.try_get("queue")?,
        priority: row.try_get("priority")?,
        idempotency_key: row.try_get("idempotency_key")?,
        parent_id: row.try_get("parent_id")?,
        origin_id: row.try_get("origin_id")?,
        created_at: row.try_get::<Timestamp, _>("created_at")?.into(),
        state: state(row)?,
        attempt: row.try_get::<Option<i32>, _>("attempt")?.unwrap_or(0),
        crashes: row.try_get("crashes")?,
        cause: row.try_get("cause")?,
        ready_at: instant(row, "ready_at")?,
        worker_id: row.try_get("worker_id")?,
        started_at: instant(row, "started_at")?,
        finished_at: instant(row, "finished_at")?,
        error: stored(row, "error")?.map(|error| sealer.show_failure(&place_of_error(run_id, ""), &error)),
        compensating: row.try_get("compensating")?,
        pause_reason: row.try_get("pause_reason")?,
        awaited_signals: row.try_get("awaited_signals")?,
        metadata: match row.try_get::<Option<String>, _>("metadata")? {
            // Unreadable metadata is ignored, so that a list shows all runs. The worker that claims
            // this run reports the error.
            Some(text) => serde_json::from_str(&text).unwrap_or_default(),
            None => Metadata::new(),
        },
    })
}

pub(crate) fn state(row: &PgRow) -> Result<RunState, sqlx::Error> {
    let word: &str = row.try_get("state")?;
    RunState::parse(word).ok_or_else(|| {
        let problem =
            format!("the database has a run in the state `{word}`, which this version does not know");
        sqlx::Error::Decode(problem.into())
    })
}

pub(crate) fn instant(row: &PgRow, column: &str) -> Result<Option<SystemTime>, sqlx::Error> {
    Ok(row.try_get::<Option<Timestamp>, _>(column)?.map(SystemTime::from))
}

pub(crate) fn stored(row: &PgRow, column: &str) -> Result<Option<Stored>, sqlx::Error> {
    Ok(row.try_get::<Option<String>, _>(column)?.map(Stored::read))
}

impl fmt::Debug for StepInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let result = self.result.as_ref().map(|output| format!("{} bytes", output.len()));
        f.debug_struct("StepInfo")
            .field("key", &self.key)
            .field("ordinal", &self.ordinal)
            .field("result", &result)
            .field("claim", &self.claim)
            .finish_non_exhaustive()
    }
}
