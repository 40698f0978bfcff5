//! Lists of runs, for people and tools.

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::inspect::{RunInfo, run_info};
use crate::model::payload::Sealer;
use crate::model::timestamp::Timestamp;
use crate::store::sql;

/// The filter and the page size of a list of runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// `None`: every tenant.
    pub(crate) tenants: Option<Vec<String>>,
    /// The cursor: only runs before it.
    pub(crate) before: Option<Spot>,
    /// Job names without version; `None`: any job.
    pub(crate) jobs: Option<Vec<String>>,
    pub(crate) queues: Option<Vec<String>>,
    pub(crate) states: Option<Vec<String>>,
    /// The maximum number of runs to read.
    pub(crate) look_at: i64,
    /// The maximum number of runs to return.
    pub(crate) limit: i64,
}

/// A cursor: the place of a run in the order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) created_at: Timestamp,
    pub(crate) run_id: Uuid,
}

/// A page of runs.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) runs: Vec<RunInfo>,
    /// The cursor of the last run that was read, if more runs may follow.
    pub(crate) rest: Option<Spot>,
}

/// Returns the latest runs that match.
pub(crate) async fn runs(
    connection: &mut PgConnection,
    wanted: &Wanted,
    sealer: &Sealer,
) -> Result<Found, sqlx::Error> {
    let rows = sqlx::query(sql::RUNS)
        .bind(&wanted.tenants)
        .bind(wanted.before.map(|spot| spot.created_at))
        .bind(wanted.before.map(|spot| spot.run_id))
        .bind(wanted.look_at)
        .bind(&wanted.jobs)
        .bind(&wanted.queues)
        .bind(&wanted.states)
        .bind(wanted.limit)
        .fetch_all(connection)
        .await?;
    let is_run = |row: &&PgRow| row.try_get::<Option<Uuid>, _>("run_id").is_ok_and(|run_id| run_id.is_some());
    let of_runs: Vec<&PgRow> = rows.iter().filter(is_run).collect();
    let runs = of_runs.iter().map(|row| run_info(row, sealer)).collect::<Result<Vec<_>, _>>()?;
    let is_full = i64::try_from(runs.len()) == Ok(wanted.limit);
    let rest = match (of_runs.last(), rows.first()) {
        (Some(last), _) if is_full => Some(spot(last, "created_at", "run_id")?),
        (_, Some(row)) if row.try_get::<i64, _>("looked_at")? >= wanted.look_at => {
            Some(spot(row, "last_created_at", "last_run_id")?)
        }
        _ => None,
    };
    Ok(Found { runs, rest })
}

fn spot(row: &PgRow, created_at: &str, run_id: &str) -> Result<Spot, sqlx::Error> {
    Ok(Spot { created_at: row.try_get(created_at)?, run_id: row.try_get(run_id)? })
}
