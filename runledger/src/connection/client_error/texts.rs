//! The composed texts of client errors: outcomes of runs, connection errors, and the effects of a
//! pooler.

use super::ClientError;
use crate::model::run::failure::Failure;
use crate::store::error::{Class, Limit, Reason, cause};
use crate::store::migrate::MigrateError;
use crate::store::session::has_code;
use crate::store::session::without_connection::is_late;

/// The text of a failed statement. The source has the database's own message.
pub(super) fn not_carried_out(error: &sqlx::Error) -> &'static str {
    let cause = cause(error);
    if cause.class == Class::Conflict {
        return "another transaction was in this one's way, and the server has given this one up; nothing of it was written; begin it again";
    }
    match cause.reason {
        Reason::Limit(Limit::Lock) => {
            "another transaction has kept locked for too long what this call needs; a transaction that has sent a signal locks the run until it ends; \
             end it (`pg_stat_activity` shows the oldest `xact_start`), then repeat the call"
        }
        Reason::Limit(Limit::Statement | Limit::Transaction | Limit::Idle)
        | Reason::ReadOnly
        | Reason::Exhausted
        | Reason::Privilege
        | Reason::Lost
        | Reason::Other => {
            "the database did not carry out the statement; if it was an enqueue, the same call may safely be repeated"
        }
    }
}

/// The advice for a connection that failed to open.
pub(super) fn without_connection(error: &sqlx::Error) -> &'static str {
    if is_late(error) {
        "the server accepts connections now, so repeat the call"
    } else if has_code(error, "53300") {
        "the server accepts no further connection; close some, or raise the limit that the server names"
    } else {
        "check that this is the right address, that the server runs there and has this database, and that it lets this role in (encrypted connections \
         need the feature `tls`)"
    }
}

impl ClientError {
    /// The error text without the failure. The text of the error ends with the failure.
    pub(super) fn head(&self) -> String {
        match self {
            Self::RunFailed { run_id, .. } => format!("run `{run_id}` failed"),
            Self::RunCancelled { run_id, .. } => format!("run `{run_id}` was cancelled"),
            Self::RunBlocked { run_id, .. } => {
                format!(
                    "run `{run_id}` is blocked and waits for a person (mend the cause and resume it, or cancel it)"
                )
            }
            _ => String::new(),
        }
    }

    /// Splits the outcome of a run into its text and its failure.
    pub(crate) fn end_of_run(&self) -> Option<(String, &Failure)> {
        match self {
            Self::RunFailed { failure, .. }
            | Self::RunCancelled { failure, .. }
            | Self::RunBlocked { failure, .. } => Some((self.head(), failure)),
            _ => None,
        }
    }

    /// The pooler shares sessions of the server between clients.
    pub(crate) fn pooled() -> Self {
        Self::Config(
            "the connection string leads to a pooler that gives each transaction another session of the server (PgBouncer in transaction or \
             statement mode): session locks, notifications and prepared statements do not work there; nothing was written; connect to PostgreSQL \
             directly, or through a pooler in session mode"
                .to_owned(),
        )
    }

    /// Replaces the first error of a client with such a pooler. The error is that a prepared
    /// statement of another client already exists, or that the client's own is missing.
    pub(crate) fn or_pooled(self) -> Self {
        let (Self::Database(error) | Self::Migrate(MigrateError::Database(error))) = &self else {
            return self;
        };
        let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
        match code.as_deref() {
            // duplicate prepared statement, unknown prepared statement
            Some("42P05" | "26000") => Self::pooled(),
            _ => self,
        }
    }
}
