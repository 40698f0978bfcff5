//! Active keys. The transaction that writes a run also assigns its key. Nothing deletes a key: a
//! new run takes it over if the run that holds it has ended.

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::store::sql;
use crate::store::write::write;

/// The result of assigning active keys.
#[derive(Debug)]
pub(crate) struct Given {
    /// The runs whose key another live run holds.
    pub(crate) refused: Vec<Uuid>,
    /// The isolation level of the transaction.
    pub(crate) isolation: String,
}

/// The run that holds a key.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) job: String,
    pub(crate) key: String,
    pub(crate) run_id: Uuid,
}

/// Assigns the active keys of runs that this transaction wrote. If one is refused, the transaction
/// must not commit.
pub(crate) async fn give(connection: &mut PgConnection, runs: &[Uuid]) -> Result<Given, sqlx::Error> {
    let row = write(sql::ACTIVATE, |give| sqlx::query(give).bind(runs).fetch_one(connection)).await?;
    Ok(Given { refused: row.try_get("refused")?, isolation: row.try_get("isolation")? })
}

/// Returns the run that holds the key of a refused run. `None` if the holder was deleted since.
pub(crate) async fn holder(
    connection: &mut PgConnection,
    refused: Uuid,
) -> Result<Option<Holder>, sqlx::Error> {
    let row = sqlx::query(sql::ACTIVE_HOLDER).bind(refused).fetch_optional(connection).await?;
    row.map(|row| {
        Ok(Holder { job: row.try_get("job")?, key: row.try_get("key")?, run_id: row.try_get("run_id")? })
    })
    .transpose()
}
