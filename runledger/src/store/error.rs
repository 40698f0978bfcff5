//! Errors of the database, classified by their SQLSTATE: what may be tried again, and what never helps.

use std::error::Error as StdError;

use sqlx::Error as SqlxError;

/// What a failed statement asks of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// The server, the network or a lock was in the way. The statement may have been carried out: repeat it as it is.
    Transient,
    /// The server carries nothing out for now: it is read-only, or lacks disk, memory or connections. Repeat it as it is when that is over.
    Refused,
    /// Two transactions were in each other's way: repeat the whole transaction from its start.
    Conflict,
    /// The data or the statement is wrong: repeating it never helps.
    Permanent,
}

/// Classifies an error of sqlx.
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

/// Classifies any error by the first error of sqlx in its chain: what a user's body returned.
pub(crate) fn class_in_chain(error: &(dyn StdError + 'static)) -> Option<Class> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(sqlx) = error.downcast_ref::<SqlxError>() {
            return Some(class(sqlx));
        }
        next = error.source();
    }
    None
}

fn class_of_code(code: &str) -> Class {
    match code {
        // serialization failure, deadlock
        "40001" | "40P01" => Class::Conflict,
        // read-only; insufficient resources: disk, memory, connections
        _ if code == "25006" || code.starts_with("53") => Class::Refused,
        // lock not available, query cancelled (our time-outs), idle and transaction time-outs
        "55P03" | "57014" | "25P03" | "57P05" | "25P04" => Class::Transient,
        // password or privileges changed under us: an operator mends it, the work waits
        "28P01" | "28000" | "42501" => Class::Transient,
        // connection exceptions, operator intervention, system errors
        _ if ["08", "57", "58"].iter().any(|class| code.starts_with(class)) => Class::Transient,
        _ => Class::Permanent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_and_a_lost_connection_are_tried_again() {
        for code in ["57P01", "57P03", "08006", "55P03"] {
            assert_eq!(class_of_code(code), Class::Transient, "{code}");
        }
        assert_eq!(class(&SqlxError::PoolTimedOut), Class::Transient);
    }

    #[test]
    fn a_full_disk_and_a_server_that_is_read_only_are_waited_for() {
        for code in ["53100", "53200", "53300", "25006"] {
            assert_eq!(class_of_code(code), Class::Refused, "{code}");
        }
    }

    #[test]
    fn bad_data_and_bad_statements_are_not_tried_again() {
        for code in ["22P02", "22P05", "23505", "23514", "42601", "42P01"] {
            assert_eq!(class_of_code(code), Class::Permanent, "{code}");
        }
    }

    #[test]
    fn a_deadlock_repeats_the_transaction() {
        assert_eq!([class_of_code("40001"), class_of_code("40P01")], [Class::Conflict, Class::Conflict]);
    }

    #[test]
    fn the_class_is_found_below_other_errors() {
        let error =
            crate::api::error::Error::from(anyhow::Error::new(SqlxError::PoolTimedOut).context("charging"));
        assert_eq!(class_in_chain(error.as_std()), Some(Class::Transient));
        assert_eq!(class_in_chain(&std::fmt::Error), None);
    }
}
