//! Progress: values that bodies report and workflows publish.

use sqlx::PgConnection;
use uuid::Uuid;

use super::checkpoint::{Fence, held};
use crate::model::payload::Stored;
use crate::store::sql;
use crate::store::write::write;

/// A progress value to store.
#[derive(Clone, Debug)]
pub(crate) struct ProgressWrite {
    pub(crate) fence: Fence,
    /// The step; empty for the run itself.
    pub(crate) step_key: String,
    pub(crate) value: Stored,
}

/// Stores progress values. Returns for each whether its fence held.
pub(crate) async fn note(
    connection: &mut PgConnection,
    items: &[&ProgressWrite],
) -> Result<Vec<bool>, sqlx::Error> {
    let row = write(sql::PROGRESS, |keep| {
        sqlx::query(keep)
            .bind(items.iter().map(|item| item.fence.run_id).collect::<Vec<_>>())
            .bind(items.iter().map(|item| item.fence.token).collect::<Vec<_>>())
            .bind(items.iter().map(|item| item.step_key.as_str()).collect::<Vec<_>>())
            .bind(items.iter().map(|item| item.value.as_str()).collect::<Vec<_>>())
            .fetch_one(connection)
    });
    held(&row.await?, items.len())
}

/// Returns the progress that a body reported last.
pub(crate) async fn last(
    connection: &mut PgConnection,
    run_id: Uuid,
    step_key: &str,
) -> Result<Option<Stored>, sqlx::Error> {
    let said: Option<String> =
        sqlx::query_scalar(sql::LAST_PROGRESS).bind(run_id).bind(step_key).fetch_optional(connection).await?;
    Ok(said.map(Stored::read))
}

/// Returns the key and the value of the last step with this name that published a value.
pub(crate) async fn published(
    connection: &mut PgConnection,
    run_id: Uuid,
    name: &str,
) -> Result<Option<(String, Stored)>, sqlx::Error> {
    let step: Option<(String, String)> =
        sqlx::query_as(sql::PUBLISHED).bind(run_id).bind(name).fetch_optional(connection).await?;
    Ok(step.map(|(key, value)| (key, Stored::read(value))))
}
