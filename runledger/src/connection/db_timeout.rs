//! Time limits for replies of the database.
//!
//! A connection that a firewall or a lost machine has forgotten stays open and silent for hours.
//! The server's own limits do not help if its reply is lost, so a worker has its own limits.

use std::future::Future;
use std::io;
use std::time::Duration;

/// Longer than the server's limit for a statement of the engine (30 s, `store::session`), so a slow
/// statement does not count as lost.
pub(crate) const STATEMENT_LIMIT: Duration = Duration::from_secs(35);

/// How long a listening connection may take to answer a ping.
pub(crate) const PING_LIMIT: Duration = Duration::from_secs(5);

/// Waits for a reply. After a timeout, do not use the connection again.
///
/// # Errors
/// The error of the statement, or [`sqlx::Error::Io`] with `TimedOut` if no reply came. The
/// statement may still have taken effect.
pub(crate) async fn with_timeout<T>(
    within: Duration,
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    match tokio::time::timeout(within, statement).await {
        Ok(answer) => answer,
        Err(_) => {
            let message =
                format!("the database has not answered within {within:?}; the connection is given up");
            Err(sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, message)))
        }
    }
}

/// Whether [`with_timeout`] or the network gave up on a statement.
pub(crate) fn has_timed_out(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Io(error) if error.kind() == io::ErrorKind::TimedOut)
}
