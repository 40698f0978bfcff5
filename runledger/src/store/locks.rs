//! Locks on runs that another transaction may hold for long.
//!
//! A user's transaction that sent a signal keeps the run locked until it ends. Maintenance and the
//! commit queue work for many runs, so they leave a locked run for later.

use std::collections::HashSet;

use sqlx::{Connection, PgConnection, Postgres, Transaction};
use uuid::Uuid;

use super::error::{Limit, Reason, cause};
use super::session::{BEGIN_BRIEF, BEGIN_QUEUED, BEGIN_RESTLESS};
use super::sql;

/// How a transaction treats a run that another transaction has locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfLocked {
    /// Waits for at most 10 s.
    Wait,
    /// Waits for at most 1 s.
    Queue,
    /// Continues without the run.
    Skip,
}

impl IfLocked {
    /// Begins a transaction. With [`Skip`](Self::Skip), it waits for other locks for at most
    /// 200 ms.
    pub(crate) async fn begin(
        self,
        connection: &mut PgConnection,
    ) -> Result<Transaction<'_, Postgres>, sqlx::Error> {
        let begin = match self {
            Self::Wait => BEGIN_RESTLESS,
            Self::Queue => BEGIN_QUEUED,
            Self::Skip => BEGIN_BRIEF,
        };
        connection.begin_with(begin).await
    }

    /// Locks runs until the end of the transaction. Returns the runs that it locked.
    pub(crate) async fn lock_runs(
        self,
        tx: &mut PgConnection,
        runs: &[Uuid],
    ) -> Result<Vec<Uuid>, sqlx::Error> {
        let lock = match self {
            Self::Wait | Self::Queue => sql::LOCK_RUNS,
            Self::Skip => sql::LOCK_FREE_RUNS,
        };
        sqlx::query_scalar(lock).bind(runs).fetch_all(tx).await
    }
}

/// Returns the runs that no other transaction has locked at this moment.
pub(crate) async fn free(connection: &mut PgConnection, runs: &[Uuid]) -> Result<HashSet<Uuid>, sqlx::Error> {
    if runs.is_empty() {
        return Ok(HashSet::new());
    }
    // The locks end with the statement.
    Ok(IfLocked::Skip.lock_runs(connection, runs).await?.into_iter().collect())
}

/// How many runs a statement asks for: `at_once`, plus the runs that it leaves out. Few statements
/// then get past all locked runs.
pub(crate) fn limit_beyond(at_once: i64, left_out: &[Uuid]) -> i64 {
    at_once.saturating_add(i64::try_from(left_out.len()).unwrap_or(i64::MAX))
}

/// Whether a statement reached its limit for lock waits.
pub(crate) fn is_locked(error: &sqlx::Error) -> bool {
    cause(error).reason == Reason::Limit(Limit::Lock)
}
