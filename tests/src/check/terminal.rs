//! I7, I9: what has ended stays as it is, and nothing is recorded of it any more. I2b: what is recorded stays as it is.

use sqlx::PgConnection;

use super::Violations;

/// Changes of ends and of recorded steps, and runs that got a place again or a step after their end.
///
/// # Errors
/// When the database does not answer.
pub async fn changes(connection: &mut PgConnection) -> Result<Violations, sqlx::Error> {
    sqlx::query_scalar("select format('%s of run %s', what, run_id) from audit.tampering order by at")
        .fetch_all(connection)
        .await
}
