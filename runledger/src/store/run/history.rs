//! Reads the recorded history of a run, live or ended.

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::model::graph::dependency_inputs::DependencyOutput;
use crate::model::payload::Stored;
use crate::model::replay::recorded::StoredStep;
use crate::store::attempt::checkpoint::steps;
use crate::store::{given, sql};

/// The record of a run, as it is stored.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) job: String,
    pub(crate) tenant: String,
    pub(crate) graph_id: Option<Uuid>,
    pub(crate) state: String,
    pub(crate) attempt: u32,
    pub(crate) input: Stored,
    /// For a node of a graph: the outcomes of its dependencies.
    pub(crate) given: Vec<DependencyOutput>,
    pub(crate) steps: Vec<StoredStep>,
}

/// Reads the record of a run. `None` if the run does not exist.
pub(crate) async fn history(
    connection: &mut PgConnection,
    run_id: Uuid,
) -> Result<Option<Record>, sqlx::Error> {
    let Some(row) = sqlx::query(sql::HISTORY).bind(run_id).fetch_optional(connection).await? else {
        return Ok(None);
    };
    Ok(Some(Record {
        job: row.try_get("job")?,
        tenant: row.try_get("tenant")?,
        graph_id: row.try_get("graph_id")?,
        state: row.try_get("state")?,
        attempt: row.try_get::<Option<i32>, _>("attempt")?.unwrap_or(0).unsigned_abs(),
        input: Stored::read(row.try_get("input")?),
        given: given(&row)?,
        steps: steps(&row)?,
    }))
}
