//! Active keys: given where a run is written, in the same transaction. Nothing takes them back: whoever asks for one looks whether the run that has it has
//! ended.

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::sql;
use super::write::write;

/// What became of the keys of some runs.
#[derive(Debug)]
pub(crate) struct Given {
    /// Those whose key another run has.
    pub(crate) refused: Vec<Uuid>,
    /// The isolation level of the transaction.
    pub(crate) isolation: String,
}

/// The run that has a key.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) job: String,
    pub(crate) key: String,
    pub(crate) run_id: Uuid,
}

/// Gives runs that this transaction has written their keys. Where one is refused the transaction must not commit.
pub(crate) async fn give(connection: &mut PgConnection, runs: &[Uuid]) -> Result<Given, sqlx::Error> {
    let row = write(sql::ACTIVATE, |give| sqlx::query(give).bind(runs).fetch_one(connection)).await?;
    Ok(Given { refused: row.try_get("refused")?, isolation: row.try_get("isolation")? })
}

/// Who has the key of a run that was refused; none where that has been deleted meanwhile.
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
