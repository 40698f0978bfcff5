//! The overrides that operators set for jobs, one row per job. Workers read them at their start,
//! and again when a heartbeat reports a change.

use std::time::{Duration, SystemTime};

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use crate::model::run::overrides::JobOverrides;
use crate::model::timestamp::Timestamp;
use crate::store::sql;
use crate::store::write::write;

/// A job with an override.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredOverrides {
    /// The job.
    pub job: String,
    /// The override.
    pub overrides: JobOverrides,
    /// When the override was last changed, by the database's clock.
    pub changed_at: SystemTime,
}

/// Returns every override, by job.
pub(crate) async fn all(connection: &mut PgConnection) -> Result<Vec<StoredOverrides>, sqlx::Error> {
    sqlx::query(sql::OVERRIDES).fetch_all(connection).await?.iter().map(stored).collect()
}

fn stored(row: &PgRow) -> Result<StoredOverrides, sqlx::Error> {
    let millis = |name: &str| -> Result<Option<Duration>, sqlx::Error> {
        let millis: Option<i64> = row.try_get(name)?;
        Ok(millis.map(|millis| Duration::from_millis(millis.unsigned_abs())))
    };
    let overrides = JobOverrides {
        disabled: row.try_get("disabled")?,
        max_attempts: row.try_get::<Option<i32>, _>("max_attempts")?.map(i32::unsigned_abs),
        timeout: millis("timeout_ms")?,
        backoff: millis("backoff_first_ms")?.zip(millis("backoff_cap_ms")?),
    };
    let changed_at: Timestamp = row.try_get("changed_at")?;
    Ok(StoredOverrides { job: row.try_get("job")?, overrides, changed_at: changed_at.into() })
}

/// Sets overrides. If `are_all`, also clears the overrides of all other jobs. Returns how many jobs
/// have another override than before.
pub(crate) async fn say(
    connection: &mut PgConnection,
    overrides: &[(String, JobOverrides)],
    are_all: bool,
) -> Result<u64, sqlx::Error> {
    let millis = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    let of = |part: fn(&JobOverrides) -> Option<Duration>| {
        overrides.iter().map(|(_, overrides)| part(overrides).map(millis)).collect::<Vec<_>>()
    };
    let row = write(sql::SET_OVERRIDES, |say| {
        sqlx::query(say)
            .bind(are_all)
            .bind(overrides.iter().map(|(job, _)| job.as_str()).collect::<Vec<_>>())
            .bind(overrides.iter().map(|(_, overrides)| overrides.disabled.as_deref()).collect::<Vec<_>>())
            .bind(
                overrides
                    .iter()
                    .map(|(_, overrides)| overrides.max_attempts.map(u32::cast_signed))
                    .collect::<Vec<_>>(),
            )
            .bind(of(|overrides| overrides.timeout))
            .bind(of(|overrides| overrides.backoff.map(|(first, _)| first)))
            .bind(of(|overrides| overrides.backoff.map(|(_, cap)| cap)))
            .fetch_one(connection)
    })
    .await?;
    Ok(row.try_get::<i64, _>("changed")?.unsigned_abs())
}

/// Clears the override of a job. Returns false if there was none.
pub(crate) async fn forget(connection: &mut PgConnection, job: &str) -> Result<bool, sqlx::Error> {
    let gone = write(sql::CLEAR_OVERRIDES, |forget| sqlx::query(forget).bind(job).fetch_optional(connection))
        .await?;
    Ok(gone.is_some())
}
