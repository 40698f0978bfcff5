//! A run that has not ended is in one place: the queue, a lease or its wait. Each move between them is one
//! transaction, so only changes from outside, such as a partial restore, leave a run in two. The move of such a
//! run fails by a primary key, and with it the statement that moves many others.

use sqlx::PgConnection;
use uuid::Uuid;

use super::sql;
use super::write::write;

/// The primary keys of the places, and of the ends.
const PLACES: [&str; 4] = ["ready_pkey", "lease_pkey", "waiting_pkey", "outcome_pkey"];

/// Removes all but one place of runs that made a statement fail. `runs` are those that the statement was about;
/// leased and due runs are always included. Returns whether to repeat the statement.
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
