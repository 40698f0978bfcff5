//! Runs in flight with what is recorded of them, page by page, for a look at whether the code still follows it.

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::checkpoint::steps;
use super::sql;
use crate::model::replay::Recorded;

/// A run as it is recorded.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) run_id: Uuid,
    pub(crate) job: String,
    pub(crate) tenant: String,
    pub(crate) input: String,
    /// Attempts spent.
    pub(crate) attempt: i32,
    pub(crate) steps: Vec<Recorded>,
    /// Whether its code is not run any more: what its steps did is taken back.
    pub(crate) undoing: bool,
}

#[cfg(feature = "testing")]
impl From<&crate::model::history::History> for Script {
    fn from(history: &crate::model::history::History) -> Self {
        Self {
            run_id: history.run_id,
            job: crate::model::version::stored_name(&history.job, history.version).into_owned(),
            tenant: history.tenant.clone(),
            input: history.input.clone(),
            attempt: i32::try_from(history.attempt).unwrap_or(i32::MAX),
            steps: history.recorded(),
            undoing: false,
        }
    }
}

/// The next runs in flight after this one.
pub(crate) async fn in_flight(
    connection: &mut PgConnection,
    after: Uuid,
    limit: i64,
) -> Result<Vec<Script>, sqlx::Error> {
    let rows = sqlx::query(sql::IN_FLIGHT).bind(after).bind(limit).fetch_all(connection).await?;
    rows.iter().map(script).collect()
}

fn script(row: &PgRow) -> Result<Script, sqlx::Error> {
    Ok(Script {
        run_id: row.try_get("run_id")?,
        job: row.try_get("job")?,
        tenant: row.try_get("tenant")?,
        input: row.try_get("input")?,
        attempt: row.try_get("attempt")?,
        steps: steps(row)?,
        undoing: row.try_get("undoing")?,
    })
}
