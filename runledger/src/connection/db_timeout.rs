//! The answer of the database, or the news that there is none.
//!
//! A connection that a firewall or a lost machine has forgotten stays open and silent for hours. The server's own limits do not help where its reply is
//! lost, so what a worker must not wait for in vain has a limit here too.

use std::future::Future;
use std::io;
use std::time::Duration;

/// Longer than the server lets a statement of the engine take (30 seconds, `store::session`), so that a slow one is not taken for a lost one.
pub(crate) const STATEMENT_LIMIT: Duration = Duration::from_secs(35);

/// How long a listening connection that is asked whether it lives may take to answer.
pub(crate) const PING_LIMIT: Duration = Duration::from_secs(5);

/// Waits for an answer. Where none comes the connection must not be used again.
///
/// # Errors
/// Those of the statement; a timed out [`sqlx::Error::Io`] where nothing has come: the statement may have been carried out.
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

/// Whether [`answered`] has given a statement up, or the network has.
pub(crate) fn has_timed_out(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Io(error) if error.kind() == io::ErrorKind::TimedOut)
}
