//! Classifies database errors by SQLSTATE: which statements may be retried, and which never
//! succeed.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use sqlx::Error as SqlxError;
use sqlx::postgres::{PgDatabaseError, PgSeverity};

/// How the caller should react to a failed statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// The server, the network or a lock failed the statement, which may still have taken effect.
    /// Repeat the same statement.
    Transient,
    /// The server executes no writes for now: it is read-only, or lacks disk, memory or
    /// connections. Repeat the same statement later.
    Refused,
    /// A conflict with another transaction. Repeat the whole transaction from its start.
    Conflict,
    /// The data or the statement is wrong. Repeating it never helps.
    Permanent,
}

/// Classifies an sqlx error.
pub(crate) fn class(error: &SqlxError) -> Class {
    match error {
        SqlxError::Database(database) => {
            database.code().map_or(Class::Permanent, |code| class_of_code(&code))
        }
        SqlxError::Io(_)
        | SqlxError::Tls(_)
        | SqlxError::Protocol(_)
        | SqlxError::PoolTimedOut
        | SqlxError::PoolClosed
        | SqlxError::WorkerCrashed => Class::Transient,
        _ => Class::Permanent,
    }
}

/// Converts the error of a connection that could not be opened. Its class is always
/// [`Class::Transient`], because the server refused no statement. An operator may let the role in
/// again, or the database may accept connections again.
pub(crate) fn unopened(error: SqlxError) -> SqlxError {
    match class(&error) {
        Class::Transient => error,
        Class::Refused | Class::Conflict | Class::Permanent => {
            SqlxError::Io(io::Error::new(io::ErrorKind::NotConnected, error))
        }
    }
}

/// An operator cancelled a statement that ended sooner: the engine's time limits are longer.
const LONG: Duration = Duration::from_secs(5);

/// Returns the error text if the rows of a run are the cause. They are damaged, too large for one
/// value, or take longer to read than the time limit.
///
/// `pg_cancel_backend` and the time limit have the same code. The duration `took` distinguishes
/// them.
pub(crate) fn problem_of_rows(error: &SqlxError, took: Duration) -> Option<String> {
    let error = error.as_database_error()?;
    let code = error.code()?;
    // Data exceptions, `program_limit_exceeded`, and internal errors such as `data_corrupted`.
    let are_at_fault = code.starts_with("22") || code == "54000" || code.starts_with("XX");
    let took_too_long = reason_of_code(&code) == Reason::Limit(Limit::Statement) && took > LONG;
    (are_at_fault || took_too_long).then(|| error.message().to_owned())
}

/// Whether a failure may pass, and may concern only some runs of the statement. Examples: a row is
/// locked, one run takes too much time, or a trigger fails for one run. The role may also lack a
/// privilege on a table that only some runs need.
///
/// A server that shuts down ends the session. While the session lives, any code may come from the
/// work for one row. For example, a foreign table passes on that its own server is lost, full or
/// read-only.
pub(crate) fn may_concern_some_runs(error: &SqlxError) -> bool {
    lives(error) && class(error) != Class::Permanent
}

/// Whether the same statement may succeed at once for another run.
pub(crate) fn spares_others(error: &SqlxError) -> bool {
    class(error) == Class::Permanent || may_concern_some_runs(error)
}

/// Whether this error fails every statement that writes: the server is read-only, or lacks disk,
/// memory or connections. The same code from a trigger or from another server concerns one run
/// only.
pub(crate) fn concerns_all_runs(error: &SqlxError) -> bool {
    matches!(own_cause(error).reason, Reason::ReadOnly | Reason::Exhausted)
}

/// A time limit of the server that ends a statement, a transaction or a session. An operator may
/// have set it on the role or the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// The time between two statements of a transaction.
    Idle,
    /// The time of a whole transaction, since PostgreSQL 17.
    Transaction,
    /// The time of a statement.
    Statement,
    /// The time of a wait for a lock.
    Lock,
}

impl Limit {
    pub(crate) const ALL: [Self; 4] = [Self::Idle, Self::Transaction, Self::Statement, Self::Lock];

    /// The name of its setting.
    pub(crate) fn setting(self) -> &'static str {
        match self {
            Self::Idle => "idle_in_transaction_session_timeout",
            Self::Transaction => "transaction_timeout",
            Self::Statement => "statement_timeout",
            Self::Lock => "lock_timeout",
        }
    }

    /// Whether the server ends the session at this limit.
    pub(crate) fn ends_session(self) -> bool {
        match self {
            Self::Idle | Self::Transaction => true,
            Self::Statement | Self::Lock => false,
        }
    }
}

/// The reason of a failed statement, finer than its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A time limit. A cancelled statement has the same code as a statement that took too long.
    Limit(Limit),
    /// The transaction is read-only.
    ReadOnly,
    /// The server lacks disk, memory or connections.
    Exhausted,
    /// The role lacks a privilege.
    Privilege,
    /// The session is lost, for an unknown reason.
    Lost,
    /// Any other reason.
    Other,
}

/// The class and the reason of a database error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    pub(crate) class: Class,
    pub(crate) reason: Reason,
}

/// Classifies an sqlx error, with its reason.
pub(crate) fn cause(error: &SqlxError) -> Cause {
    let reason = match error.as_database_error().and_then(sqlx::error::DatabaseError::code) {
        Some(code) => reason_of_code(&code),
        None => match class(error) {
            Class::Transient => Reason::Lost,
            Class::Refused | Class::Conflict | Class::Permanent => Reason::Other,
        },
    };
    Cause { class: class(error), reason }
}

/// Like [`cause`], but a limit, a read-only transaction or a lack of resources is the reason only
/// if this server reports it for itself.
///
/// A trigger can raise the same codes, and a foreign table passes on the codes of another server.
/// `nowait` and a cancelled statement have the codes of time limits.
pub(crate) fn own_cause(error: &SqlxError) -> Cause {
    let cause = cause(error);
    let is_of = |routine| pg(error).is_some_and(|error| error.routine() == Some(routine));
    let is_own = match cause.reason {
        Reason::ReadOnly => is_of("PreventCommandIfReadOnly"),
        Reason::Exhausted => !PASS_ERRORS_ON.into_iter().any(is_of),
        Reason::Limit(Limit::Statement | Limit::Lock) => is_of("ProcessInterrupts") && !is_cancel(error),
        // The server ends the session with this error.
        Reason::Limit(Limit::Idle | Limit::Transaction) => !lives(error),
        Reason::Privilege | Reason::Lost | Reason::Other => true,
    };
    if is_own { cause } else { Cause { reason: Reason::Other, ..cause } }
}

/// Whether a person cancelled the statement, if the server's messages are in English. In another
/// language, only the duration distinguishes a cancel from a limit.
fn is_cancel(error: &SqlxError) -> bool {
    pg(error).is_some_and(|error| error.message() == "canceling statement due to user request")
}

/// Whether the server answered with an error that leaves the session open.
pub(crate) fn lives(error: &SqlxError) -> bool {
    pg(error).is_some_and(|error| error.severity() == PgSeverity::Error)
}

fn pg(error: &SqlxError) -> Option<&PgDatabaseError> {
    error.as_database_error()?.try_downcast_ref()
}

/// Classifies an error that a user's body returned, by the first sqlx error in its chain.
pub(crate) fn cause_in_chain(error: &(dyn StdError + 'static)) -> Option<Cause> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(sqlx) = error.downcast_ref::<SqlxError>() {
            return Some(own_cause(sqlx));
        }
        next = error.source();
    }
    None
}

/// The PostgreSQL functions with which `raise`, foreign tables, `dblink` and PL/Python report an
/// error from elsewhere.
const PASS_ERRORS_ON: [&str; 4] =
    ["exec_stmt_raise", "pgfdw_report_error", "dblink_res_error", "PLy_elog_impl"];

/// Whether the server lacks disk, memory or connections. A configured limit such as
/// `temp_file_limit` does not count, because the same statement reaches it again.
fn is_exhausted(code: &str) -> bool {
    code.starts_with("53") && code != "53400"
}

fn reason_of_code(code: &str) -> Reason {
    match code {
        "25P03" => Reason::Limit(Limit::Idle),
        "25P04" => Reason::Limit(Limit::Transaction),
        "57014" => Reason::Limit(Limit::Statement),
        "55P03" => Reason::Limit(Limit::Lock),
        "25006" => Reason::ReadOnly,
        "42501" => Reason::Privilege,
        _ if is_exhausted(code) => Reason::Exhausted,
        _ if code.starts_with("08") => Reason::Lost,
        _ => Reason::Other,
    }
}

fn class_of_code(code: &str) -> Class {
    match code {
        // Serialization failure, deadlock.
        "40001" | "40P01" => Class::Conflict,
        // Lock not available, query cancelled (the engine's time limits), idle and transaction
        // limits.
        "55P03" | "57014" | "25P03" | "57P05" | "25P04" => Class::Transient,
        // Wrong password or missing privileges: an operator changed them and can restore them.
        "28P01" | "28000" | "42501" => Class::Transient,
        _ if code == "25006" || is_exhausted(code) => Class::Refused,
        // Connection exceptions, operator intervention, system errors.
        _ if ["08", "57", "58"].iter().any(|class| code.starts_with(class)) => Class::Transient,
        _ => Class::Permanent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_lost_connection_and_timeout_are_transient() {
        for code in ["57P01", "57P03", "08006", "55P03"] {
            assert_eq!(class_of_code(code), Class::Transient, "{code}");
        }
        assert_eq!(class(&SqlxError::PoolTimedOut), Class::Transient);
    }

    #[test]
    fn exhausted_or_read_only_server_is_classed_as_refused() {
        for code in ["53100", "53200", "53300", "25006"] {
            assert_eq!(class_of_code(code), Class::Refused, "{code}");
        }
    }

    #[test]
    fn bad_data_and_bad_statements_are_permanent_errors() {
        for code in ["22P02", "22P05", "23505", "23514", "42601", "42P01"] {
            assert_eq!(class_of_code(code), Class::Permanent, "{code}");
        }
    }

    #[test]
    fn serialization_failure_and_deadlock_are_conflicts() {
        assert_eq!([class_of_code("40001"), class_of_code("40P01")], [Class::Conflict, Class::Conflict]);
    }

    #[test]
    fn error_class_is_found_in_cause_chain() {
        let error = crate::definition::error::Error::from(
            anyhow::Error::new(SqlxError::PoolTimedOut).context("charging"),
        );
        let lost = Cause { class: Class::Transient, reason: Reason::Lost };
        assert_eq!(cause_in_chain(error.as_std()), Some(lost));
        assert_eq!(cause_in_chain(&std::fmt::Error), None);
    }

    #[test]
    fn exceeded_server_limit_is_recognised_by_its_code() {
        let codes = [
            ("25P03", Limit::Idle),
            ("25P04", Limit::Transaction),
            ("57014", Limit::Statement),
            ("55P03", Limit::Lock),
        ];
        for (code, limit) in codes {
            assert_eq!(reason_of_code(code), Reason::Limit(limit), "{code}");
        }
        assert_eq!(reason_of_code("08006"), Reason::Lost);
        assert_eq!(reason_of_code("57P01"), Reason::Other, "an administrator, and no limit");
        assert_eq!(reason_of_code("23505"), Reason::Other);
    }
}
