//! What is recorded of a run, ended or not.

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::checkpoint::steps;
use super::sql;
use crate::model::history::History;

/// Reads the record of a run. None where there is no such run.
pub(crate) async fn history(
    connection: &mut PgConnection,
    run_id: Uuid,
) -> Result<Option<History>, sqlx::Error> {
    let Some(row) = sqlx::query(sql::HISTORY).bind(run_id).fetch_optional(connection).await? else {
        return Ok(None);
    };
    let attempt = row.try_get::<Option<i32>, _>("attempt")?.unwrap_or(0).unsigned_abs();
    Ok(Some(History::new(
        run_id,
        row.try_get("job")?,
        row.try_get("tenant")?,
        row.try_get("state")?,
        attempt,
        row.try_get("input")?,
        steps(&row)?,
    )))
}
