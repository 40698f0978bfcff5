//! I7, I9: a terminal run does not change, and nothing more is recorded for it. I2b: a record does
//! not change.

use sqlx::PgConnection;

use super::Violations;

/// Finds changed outcomes and steps, and runs that were scheduled or got a step after their end.
///
/// # Errors
/// If the database does not answer.
pub async fn changes(connection: &mut PgConnection) -> Result<Violations, sqlx::Error> {
    sqlx::query_scalar("select format('%s of run %s', what, run_id) from audit.tampering order by at")
        .fetch_all(connection)
        .await
}
