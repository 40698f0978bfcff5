//! Deadlines of runs: noted where they are enqueued, and carried out by cancelling.

use sqlx::PgConnection;
use uuid::Uuid;

use super::enqueue::NewRun;
use super::sql;
use super::write::write;

/// Notes the deadlines of those runs that have one, in the transaction that has enqueued them.
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

/// Ends runs whose deadline is over as cancelled, or asks their workers to. What is below them is cancelled by what finishes such requests.
#[cfg(feature = "worker")]
pub(crate) async fn carry_out(connection: &mut PgConnection, at_once: i64) -> Result<(), sqlx::Error> {
    use std::time::Duration;

    let due: Vec<(Uuid, i64)> =
        sqlx::query_as(sql::DEADLINE_DUE).bind(at_once).fetch_all(&mut *connection).await?;
    for (run_id, deadline_ms) in &due {
        let limit = Duration::from_millis(u64::try_from(*deadline_ms).unwrap_or(0));
        let reason = format!("it did not end within its deadline of {limit:?}");
        super::cancel::cancel(connection, *run_id, Some(&reason), super::cancel::By::Engine).await?;
    }
    let runs: Vec<Uuid> = due.into_iter().map(|(run_id, _)| run_id).collect();
    write(sql::DEADLINE_FORGET, |forget| sqlx::query(forget).bind(&runs).execute(connection)).await.map(drop)
}
