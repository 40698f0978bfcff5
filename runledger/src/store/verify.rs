//! Runs in flight with what is recorded of them, page by page, for a look at whether the code still follows it.

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::checkpoint::steps;
use super::{given, sql};
use crate::model::given::Given;
use crate::model::payload::Stored;
use crate::model::recorded::StoredStep;
use crate::model::unreadable::Unreadable;

/// A run in flight, as it is stored.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) run_id: Uuid,
    pub(crate) job: String,
    pub(crate) tenant: String,
    pub(crate) graph_id: Option<Uuid>,
    /// Attempts spent.
    pub(crate) attempt: i32,
    /// Whether its code is not run any more: what its steps did is taken back.
    pub(crate) undoing: bool,
    /// For a graph, a gate, or a node that waits for other nodes: the parameters that other nodes provide.
    pub(crate) fed: Option<Vec<String>>,
    /// An unreadable row affects only its own run, not the page.
    pub(crate) content: Result<Content, Unreadable>,
}

/// The parts of a run that its code reads.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) input: Stored,
    /// For a node of a graph: the values that its dependencies provide.
    pub(crate) given: Vec<Given>,
    pub(crate) steps: Vec<StoredStep>,
}

/// The next runs in flight after this one.
pub(crate) async fn in_flight(
    connection: &mut PgConnection,
    after: Uuid,
    limit: i64,
) -> Result<Vec<InFlight>, sqlx::Error> {
    let rows = sqlx::query(sql::IN_FLIGHT).bind(after).bind(limit).fetch_all(connection).await?;
    rows.iter().map(found).collect()
}

fn found(row: &PgRow) -> Result<InFlight, sqlx::Error> {
    Ok(InFlight {
        run_id: row.try_get("run_id")?,
        job: row.try_get("job")?,
        tenant: row.try_get("tenant")?,
        graph_id: row.try_get("graph_id")?,
        attempt: row.try_get("attempt")?,
        undoing: row.try_get("undoing")?,
        fed: row.try_get("fed")?,
        content: content(row, row.try_get("input")?),
    })
}

fn content(row: &PgRow, input: String) -> Result<Content, Unreadable> {
    Ok(Content { input: Stored::read(input), given: given(row)?, steps: steps(row)? })
}
