//! How many runs there are of each tenant and job, and how long they take.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use super::sql;

/// The runs of one tenant and job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobMetrics {
    /// The tenant; empty for none.
    pub tenant: String,
    /// The job, in all its versions. `runledger.graph` stands for graphs, `runledger.gate` for gates.
    pub job: String,
    /// Those that are due and that no worker has.
    pub queued: u64,
    /// For how long the first of these has been due.
    pub oldest: Option<Duration>,
    /// Those that are due later.
    pub scheduled: u64,
    /// Those that a worker has.
    pub running: u64,
    /// Those that wait for a child, a signal, an instant or another node.
    pub waiting: u64,
    /// Those that are blocked until a person looks after them.
    pub blocked: u64,
    /// Those that are paused.
    pub paused: u64,
    /// Of those that were created within the window: those that have completed.
    pub completed: u64,
    /// Those that have failed for good.
    pub failed: u64,
    /// Those that were cancelled.
    pub cancelled: u64,
    /// Of these three, those that ended after more than one attempt.
    pub retried: u64,
    /// How long those that a worker has ended were on their way, from the instant when they might start to the claim that ended them: with retries and waits.
    pub wait: Option<Quantiles>,
    /// How long their last attempts took.
    pub work: Option<Quantiles>,
}

/// A distribution in two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quantiles {
    /// Half of them are below.
    pub p50: Duration,
    /// One in twenty is above.
    pub p95: Duration,
}

/// What [`Db::metrics`](crate::Db::metrics) gives.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// By tenant and job. Those without runs are not there.
    pub jobs: Vec<JobMetrics>,
    /// Whether there are more runs than were looked at: the numbers are lower bounds then.
    pub is_partial: bool,
}

/// Reads them.
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
