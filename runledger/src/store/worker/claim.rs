//! Claims due runs after the cursors of lanes. A slower scan finds the runs that cursors miss.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::model::graph::dependency_inputs::DependencyOutput;
use crate::model::payload::Stored;
use crate::model::replay::recorded::StoredStep;
use crate::model::run::failure::Failure;
use crate::model::run::request::RequestOptions;
use crate::model::run::settle::Counters;
use crate::model::run::state::RunState;
use crate::model::timestamp::Timestamp;
use crate::model::unreadable::Unreadable;
use crate::store::attempt::checkpoint::steps;
use crate::store::attempt::wait::Above;
use crate::store::error::problem_of_rows;
use crate::store::places::has_repaired;
use crate::store::write::write;
use crate::store::{given, sql};

/// The runs of one queue, job and priority.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Lane {
    pub(crate) queue: String,
    pub(crate) job: String,
    pub(crate) priority: i16,
}

/// A cursor in a lane. A claim takes entries after the cursor, so it never reads the dead entries
/// before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) ready_at: Timestamp,
    pub(crate) run_id: Uuid,
}

impl Position {
    /// The cursor before everything that is due at this instant or later.
    pub(crate) fn at(instant: Timestamp) -> Self {
        Self { ready_at: instant, run_id: Uuid::nil() }
    }

    /// The cursor just before a run.
    fn before(ready_at: Timestamp, run_id: Uuid) -> Self {
        Self { ready_at, run_id: Uuid::from_u128(run_id.as_u128().saturating_sub(1)) }
    }
}

/// The result of a scan of the lanes.
#[derive(Debug)]
pub(crate) struct Scan {
    /// The database's clock.
    pub(crate) now: Timestamp,
    /// The first run of each lane that has runs.
    pub(crate) firsts: BTreeMap<Lane, First>,
    /// Whether runs need a permit of a resource. Such runs are in none of these lanes.
    pub(crate) need_permits: bool,
}

/// A lane of runs that need a permit. These lanes are sorted by resource first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ResourceLane {
    pub(crate) resource: String,
    pub(crate) lane: Lane,
}

impl ResourceLane {
    /// A cursor before all lanes, since no resource name has a control character. It sorts after
    /// all runs that need no permit.
    pub(crate) fn before_all() -> Self {
        let lane = Lane { queue: String::new(), job: String::new(), priority: i16::MIN };
        Self { resource: "\u{1}".to_owned(), lane }
    }
}

/// A lane of runs that need a permit, as a scan finds it.
#[derive(Clone, Debug)]
pub(crate) struct ResourceFirst {
    pub(crate) lane: ResourceLane,
    /// The first run of the lane.
    pub(crate) first: Position,
    /// Whether this worker serves the lane.
    pub(crate) is_served: bool,
    /// Whether the resource has a free permit.
    pub(crate) has_permit: bool,
    /// The database's clock.
    pub(crate) now: Timestamp,
}

impl ResourceFirst {
    /// Whether a worker that serves the lane could claim a run now.
    pub(crate) fn may_start(&self) -> bool {
        self.has_permit && self.first.ready_at <= self.now
    }
}

/// The first run of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct First {
    /// The cursor just before the run.
    pub(crate) before: Position,
    pub(crate) due_at: Timestamp,
}

/// The failed attempts of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailedTries {
    pub(crate) count: u32,
    /// When the first of them began.
    pub(crate) began_at: Timestamp,
}

/// The unsuccessful attempts of a suspect.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Earlier {
    /// The crashes since the run last recorded a step, continued as new, or failed without a crash.
    pub(crate) n_crashes: u32,
    /// The duration of the longest attempt.
    pub(crate) longest: Duration,
}

/// A run that this worker has claimed.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) run_id: Uuid,
    pub(crate) lane: Lane,
    pub(crate) tenant: String,
    pub(crate) above: Above,
    pub(crate) ready_at: Timestamp,
    pub(crate) claimed_at: Timestamp,
    pub(crate) counters: Counters,
    pub(crate) cancel_requested: bool,
    pub(crate) pause_requested: bool,
    /// The state in which the run ends after its compensation. Its code does not execute any more.
    pub(crate) compensating: Option<RunState>,
    /// How often the run has continued as new.
    pub(crate) slice: u32,
    /// Whether the run was created from another run.
    pub(crate) is_linked: bool,
    /// The unsuccessful attempts, if the run has been in at least two crashes.
    pub(crate) earlier: Earlier,
    pub(crate) content: Content,
    /// Why the rows of the run are unreadable. The content is then empty, and the executor blocks
    /// the run.
    pub(crate) unreadable: Option<Failure>,
}

/// The values that clients and steps stored for a run. An operator or another version may have
/// stored anything.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(crate) input: Stored,
    /// For a node of a graph: the outcomes of its dependencies.
    pub(crate) given: Vec<DependencyOutput>,
    pub(crate) options: RequestOptions,
    pub(crate) steps: Vec<StoredStep>,
    /// How often each unrecorded step has failed so far, and since when.
    pub(crate) step_failures: Vec<(String, FailedTries)>,
}

/// How a claim reads the content of its runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reading {
    /// In the statement that claims. A run with unreadable content fails the claim.
    #[default]
    AtOnce,
    /// In a separate statement per run. A run with unreadable content is blocked.
    Apart,
}

impl Reading {
    /// How to read after a claim with this result. One run may have caused any failure.
    pub(crate) fn after<T>(claim: &Result<T, sqlx::Error>) -> Self {
        match claim {
            Ok(_) => Self::AtOnce,
            Err(_) => Self::Apart,
        }
    }
}

/// Claims up to `limit` due runs of the lanes.
pub(crate) async fn claim(
    connection: &mut PgConnection,
    worker_id: i64,
    token: Uuid,
    limit: usize,
    reading: Reading,
    lanes: &[(Lane, Position)],
) -> Result<Vec<Claimed>, sqlx::Error> {
    let rows = match claim_once(connection, worker_id, token, limit, reading, lanes).await {
        Err(error) if has_repaired(connection, &error, &[]).await? => {
            claim_once(connection, worker_id, token, limit, reading, lanes).await?
        }
        done => done?,
    };
    read(connection, token, reading, &rows).await
}

async fn claim_once(
    connection: &mut PgConnection,
    worker_id: i64,
    token: Uuid,
    limit: usize,
    reading: Reading,
    lanes: &[(Lane, Position)],
) -> Result<Vec<PgRow>, sqlx::Error> {
    let send = |take| {
        sqlx::query(take)
            .bind(worker_id)
            .bind(token)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .bind(lanes.iter().map(|(lane, _)| lane.queue.as_str()).collect::<Vec<_>>())
            .bind(lanes.iter().map(|(lane, _)| lane.job.as_str()).collect::<Vec<_>>())
            .bind(lanes.iter().map(|(lane, _)| lane.priority).collect::<Vec<_>>())
            .bind(lanes.iter().map(|(_, after)| after.ready_at).collect::<Vec<_>>())
            .bind(lanes.iter().map(|(_, after)| after.run_id).collect::<Vec<_>>())
            .fetch_all(connection)
    };
    match reading {
        Reading::AtOnce => write(sql::CLAIM, send).await,
        Reading::Apart => write(sql::CLAIM_APART, send).await,
    }
}

async fn read(
    connection: &mut PgConnection,
    token: Uuid,
    reading: Reading,
    rows: &[PgRow],
) -> Result<Vec<Claimed>, sqlx::Error> {
    let mut runs: Vec<Claimed> = rows.iter().map(claimed).collect::<Result<_, _>>()?;
    if reading == Reading::Apart {
        for run in &mut runs {
            Box::pin(read_content(connection, token, run)).await?;
        }
    }
    Ok(runs)
}

async fn read_content(
    connection: &mut PgConnection,
    token: Uuid,
    run: &mut Claimed,
) -> Result<(), sqlx::Error> {
    let began = Instant::now();
    let content = sqlx::query(sql::CONTENT).bind(run.run_id).bind(token).fetch_optional(connection).await;
    match content {
        Ok(Some(row)) => {
            let Claimed { content, unreadable, earlier, .. } = claimed(&row)?;
            (run.content, run.unreadable, run.earlier) = (content, unreadable, earlier);
        }
        // Another worker has reclaimed the run. The settlement that blocks it here finds no lease
        // and changes nothing.
        Ok(None) => run.unreadable = Some(Unreadable::new("lease", &"it is gone").to_failure()),
        Err(error) => {
            let problem = problem_of_rows(&error, began.elapsed()).ok_or(error)?;
            run.unreadable = Some(Unreadable::new("content", &problem).to_failure());
        }
    }
    Ok(())
}

/// Claims up to `limit` due runs of these lanes, each with a free permit.
pub(crate) async fn claim_with_permit(
    connection: &mut PgConnection,
    worker_id: i64,
    token: Uuid,
    limit: usize,
    reading: Reading,
    lanes: &[ResourceFirst],
) -> Result<Vec<Claimed>, sqlx::Error> {
    let rows = match claim_with_permit_once(connection, worker_id, token, limit, reading, lanes).await {
        Err(error) if has_repaired(connection, &error, &[]).await? => {
            claim_with_permit_once(connection, worker_id, token, limit, reading, lanes).await?
        }
        done => done?,
    };
    read(connection, token, reading, &rows).await
}

async fn claim_with_permit_once(
    connection: &mut PgConnection,
    worker_id: i64,
    token: Uuid,
    limit: usize,
    reading: Reading,
    lanes: &[ResourceFirst],
) -> Result<Vec<PgRow>, sqlx::Error> {
    let send = |take| {
        sqlx::query(take)
            .bind(worker_id)
            .bind(token)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .bind(lanes.iter().map(|it| it.lane.resource.as_str()).collect::<Vec<_>>())
            .bind(lanes.iter().map(|it| it.lane.lane.queue.as_str()).collect::<Vec<_>>())
            .bind(lanes.iter().map(|it| it.lane.lane.job.as_str()).collect::<Vec<_>>())
            .bind(lanes.iter().map(|it| it.lane.lane.priority).collect::<Vec<_>>())
            .bind(lanes.iter().map(|it| it.first.ready_at).collect::<Vec<_>>())
            .bind(lanes.iter().map(|it| it.first.run_id).collect::<Vec<_>>())
            .fetch_all(connection)
    };
    match reading {
        Reading::AtOnce => write(sql::CLAIM_WITH_PERMIT, send).await,
        Reading::Apart => write(sql::CLAIM_WITH_PERMIT_APART, send).await,
    }
}

/// Returns up to `limit` lanes of runs that need a permit, in order, starting after the lane
/// `after`.
pub(crate) async fn resource_lanes(
    connection: &mut PgConnection,
    queues: &[String],
    jobs: &[String],
    after: &ResourceLane,
    limit: usize,
) -> Result<Vec<ResourceFirst>, sqlx::Error> {
    let rows = sqlx::query(sql::RESOURCE_LANES)
        .bind(queues)
        .bind(jobs)
        .bind(&after.resource)
        .bind(&after.lane.queue)
        .bind(&after.lane.job)
        .bind(after.lane.priority)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(connection)
        .await?;
    rows.iter().map(resource_first).collect()
}

fn resource_first(row: &PgRow) -> Result<ResourceFirst, sqlx::Error> {
    let lane =
        Lane { queue: row.try_get("queue")?, job: row.try_get("job")?, priority: row.try_get("priority")? };
    Ok(ResourceFirst {
        lane: ResourceLane { resource: row.try_get("resource")?, lane },
        first: Position { ready_at: row.try_get("first_at")?, run_id: row.try_get("first_id")? },
        is_served: row.try_get("is_served")?,
        has_permit: row.try_get::<i64, _>("free")? > 0,
        now: row.try_get("now")?,
    })
}

/// Wakes sleeping workers that serve one of these lanes.
pub(crate) async fn wake_sleeping<'l>(
    connection: &mut PgConnection,
    lanes: impl Iterator<Item = &'l Lane>,
) -> Result<(), sqlx::Error> {
    let (queues, jobs): (Vec<_>, Vec<_>) = lanes.map(|lane| (lane.queue.as_str(), lane.job.as_str())).unzip();
    sqlx::query(sql::WAKE_SLEEPING).bind(queues).bind(jobs).execute(connection).await.map(drop)
}

/// Lists the lanes that have runs, by scanning each from its start.
pub(crate) async fn lanes(
    connection: &mut PgConnection,
    queues: &[String],
    jobs: &[String],
) -> Result<Scan, sqlx::Error> {
    let rows = sqlx::query(sql::LANES).bind(queues).bind(jobs).fetch_all(connection).await?;
    // A worker that serves no queue or no job gets no row, and so no clock.
    let now = rows.first().map_or(Ok(Timestamp::DISTANT_PAST), |row| row.try_get("now"))?;
    let need_permits = rows.first().map_or(Ok(false), |row| row.try_get("need_permits"))?;
    let firsts = rows.iter().filter_map(|row| first(row).transpose()).collect::<Result<_, _>>()?;
    Ok(Scan { now, firsts, need_permits })
}

fn first(row: &PgRow) -> Result<Option<(Lane, First)>, sqlx::Error> {
    let Some(priority) = row.try_get("priority")? else { return Ok(None) };
    let lane = Lane { queue: row.try_get("queue")?, job: row.try_get("job")?, priority };
    let due_at = row.try_get("first_at")?;
    Ok(Some((lane, First { before: Position::before(due_at, row.try_get("first_id")?), due_at })))
}

/// Reads a claimed run. Unreadable content blocks this run, not the batch.
fn claimed(row: &PgRow) -> Result<Claimed, sqlx::Error> {
    let (content, unreadable) = match content(row) {
        Ok(content) => (content, None),
        Err(unreadable) => (Content::default(), Some(unreadable.to_failure())),
    };
    Ok(Claimed {
        run_id: row.try_get("run_id")?,
        lane: Lane {
            queue: row.try_get("queue")?,
            job: row.try_get("job")?,
            priority: row.try_get("priority")?,
        },
        tenant: row.try_get("tenant")?,
        above: Above::read(row)?,
        ready_at: row.try_get("ready_at")?,
        claimed_at: row.try_get("claimed_at")?,
        counters: Counters { attempt: row.try_get("attempt")?, crashes: row.try_get("crashes")? },
        cancel_requested: row.try_get("cancel_requested")?,
        pause_requested: row.try_get("pause_requested")?,
        compensating: row.try_get::<Option<String>, _>("compensating")?.as_deref().and_then(RunState::parse),
        slice: row.try_get::<i32, _>("slice")?.unsigned_abs(),
        is_linked: row.try_get("is_linked")?,
        earlier: earlier(row.try_get("earlier")?),
        content,
        unreadable,
    })
}

fn earlier(counted: Option<Vec<Option<i64>>>) -> Earlier {
    let counted = counted.unwrap_or_default();
    let number = |at: usize| counted.get(at).copied().flatten().and_then(|n| u64::try_from(n).ok());
    Earlier {
        n_crashes: number(0).map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX)),
        longest: Duration::from_micros(number(1).unwrap_or(0)),
    }
}

fn content(row: &PgRow) -> Result<Content, Unreadable> {
    for counter in ["attempt", "crashes", "claims"] {
        let count: i32 = row.try_get(counter).map_err(|error| Unreadable::new(counter, &error))?;
        if count == i32::MAX {
            return Err(Unreadable::full(counter));
        }
    }
    let text = |column: &'static str| -> Result<Option<&str>, Unreadable> {
        row.try_get(column).map_err(|error| Unreadable::new(column, &error))
    };
    let options = text("options")?.map(RequestOptions::read).transpose()?;
    Ok(Content {
        input: Stored::read(text("input")?.unwrap_or("null").to_owned()),
        given: given(row)?,
        options: options.unwrap_or_default(),
        steps: steps(row)?,
        step_failures: text("step_failures")?.map_or(Ok(Vec::new()), failures)?,
    })
}

fn failures(text: &str) -> Result<Vec<(String, FailedTries)>, Unreadable> {
    let counts: BTreeMap<String, (u32, i64)> =
        serde_json::from_str(text).map_err(|error| Unreadable::new("attempt.started_at", &error))?;
    let tries = |(count, began)| FailedTries { count, began_at: Timestamp::from_unix_micros(began) };
    Ok(counts.into_iter().map(|(key, counted)| (key, tries(counted))).collect())
}
