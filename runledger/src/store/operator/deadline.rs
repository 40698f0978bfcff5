//! Stores the deadlines of runs.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::store::run::enqueue::NewRun;
use crate::store::sql;
use crate::store::write::write;

/// Stores the deadlines of the runs that have one, in the transaction that enqueued them.
pub(crate) async fn set<'r>(
    connection: &mut PgConnection,
    runs: impl Iterator<Item = &'r NewRun>,
) -> Result<(), sqlx::Error> {
    let limited: Vec<Uuid> =
        runs.filter(|run| run.options.deadline_ms.is_some()).map(|run| run.run_id).collect();
    if limited.is_empty() {
        return Ok(());
    }
    write(sql::DEADLINE_SET, |set| sqlx::query(set).bind(&limited).execute(connection)).await.map(drop)
}
