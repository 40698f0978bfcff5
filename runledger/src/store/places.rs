//! A live run is in one place: the queue, a lease or its wait. Each move between them is one
//! transaction, so only changes from outside, such as a partial restore, leave a run in two places.
//! Moving such a run violates a primary key, and fails the statement that moves many others.

use sqlx::PgConnection;
use uuid::Uuid;

use super::sql;
use super::write::write;

/// The primary keys of these places and of outcomes.
const PLACES: [&str; 4] = ["ready_pkey", "lease_pkey", "waiting_pkey", "outcome_pkey"];

/// Leaves each run in one place, if runs in several places made a statement fail. `runs` are the
/// runs of that statement; runs with a lease and due runs are always included. Returns whether to
/// repeat the statement.
pub(crate) async fn has_repaired(
    connection: &mut PgConnection,
    error: &sqlx::Error,
    runs: &[Uuid],
) -> Result<bool, sqlx::Error> {
    let constraint = error.as_database_error().and_then(sqlx::error::DatabaseError::constraint);
    if !constraint.is_some_and(|constraint| PLACES.contains(&constraint)) {
        return Ok(false);
    }
    let repaired: Vec<Uuid> =
        write(sql::KEEP_ONE_PLACE, |keep| sqlx::query_scalar(keep).bind(runs).fetch_all(connection)).await?;
    if !repaired.is_empty() {
        tracing::warn!(
            runs = ?repaired,
            "runs were in two of the queue, a lease, their wait and their end, which only a change from outside brings about; one of the two was kept"
        );
    }
    Ok(!repaired.is_empty())
}
