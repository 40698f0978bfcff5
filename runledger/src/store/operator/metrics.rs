//! Counts the runs of each tenant and job, and measures how long they take.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use crate::store::sql;

/// The runs of one tenant and job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobMetrics {
    /// The tenant; empty for none.
    pub tenant: String,
    /// The job, in all its versions. Graphs are listed as `runledger.graph`, gates as
    /// `runledger.gate`.
    pub job: String,
    /// Due runs that no worker has claimed.
    pub queued: u64,
    /// How long the first queued run has been due.
    pub oldest: Option<Duration>,
    /// Queued runs that are due later.
    pub scheduled: u64,
    /// Runs that a worker has claimed.
    pub running: u64,
    /// Runs that wait for a child, a signal, an instant or another node.
    pub waiting: u64,
    /// Runs that are blocked until an operator acts.
    pub blocked: u64,
    /// Paused runs.
    pub paused: u64,
    /// Completed runs, of the runs created within the window.
    pub completed: u64,
    /// Failed runs, of the runs created within the window.
    pub failed: u64,
    /// Cancelled runs, of the runs created within the window.
    pub cancelled: u64,
    /// Runs that ended after more than one attempt, counted in the three fields above.
    pub retried: u64,
    /// The time from the instant when a run may start to the claim that ended it, including retries
    /// and waits. Measured for runs that a worker ended, and for decided gates up to their opening.
    pub wait: Option<Quantiles>,
    /// The duration of their last attempts.
    pub work: Option<Quantiles>,
}

/// A distribution in two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quantiles {
    /// The median.
    pub p50: Duration,
    /// The 95th percentile: one value in twenty is above.
    pub p95: Duration,
}

/// The result of [`Db::metrics`](crate::Db::metrics).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// One entry per tenant and job that has runs.
    pub jobs: Vec<JobMetrics>,
    /// Whether there are more runs than the statement reads. All counts are then lower bounds.
    pub is_partial: bool,
}

pub(crate) async fn metrics(
    connection: &mut PgConnection,
    tenants: Option<Vec<String>>,
    window: Duration,
    look_at: i64,
) -> Result<Metrics, sqlx::Error> {
    let micros = i64::try_from(window.as_micros()).unwrap_or(i64::MAX);
    let rows =
        sqlx::query(sql::METRICS).bind(tenants).bind(micros).bind(look_at).fetch_all(connection).await?;
    let is_partial = rows.first().map_or(Ok(false), |row| row.try_get("is_partial"))?;
    Ok(Metrics { jobs: rows.iter().map(job).collect::<Result<_, _>>()?, is_partial })
}

fn job(row: &PgRow) -> Result<JobMetrics, sqlx::Error> {
    let count = |name: &str| Ok::<u64, sqlx::Error>(row.try_get::<i64, _>(name)?.unsigned_abs());
    let micros = |micros: i64| Duration::from_micros(u64::try_from(micros).unwrap_or(0));
    let quantiles = |name: &str| {
        let found: Option<Vec<Option<i64>>> = row.try_get(name)?;
        Ok::<_, sqlx::Error>(match found.as_deref() {
            Some([Some(p50), Some(p95)]) => Some(Quantiles { p50: micros(*p50), p95: micros(*p95) }),
            _ => None,
        })
    };
    Ok(JobMetrics {
        tenant: row.try_get("tenant")?,
        job: row.try_get("job")?,
        queued: count("queued")?,
        oldest: row.try_get::<Option<i64>, _>("oldest_us")?.map(micros),
        scheduled: count("scheduled")?,
        running: count("running")?,
        waiting: count("waiting")?,
        blocked: count("blocked")?,
        paused: count("paused")?,
        completed: count("completed")?,
        failed: count("failed")?,
        cancelled: count("cancelled")?,
        retried: count("retried")?,
        wait: quantiles("waits_us")?,
        work: quantiles("works_us")?,
    })
}
