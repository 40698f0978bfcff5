//! Finds why a body's transaction did not commit: an operator's limit, or the body itself.

use std::time::Duration;

use crate::connection::db_timeout::with_timeout;
use crate::engine::attempt::Attempt;
use crate::model::run::failure::{Failure, FailureKind};
use crate::store::error::{Cause, Class, Limit, Reason};
use crate::store::session::limits::{May, SetLimit, limits};

/// The time limit of the query for limits. The body waits for the answer, which only improves its
/// error.
const ASKING: Duration = Duration::from_secs(5);

/// A limit of the server that the body reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Met {
    limit: Limit,
    shown: String,
    /// Whether the server named the limit. If the session ended without an error, the limit is a
    /// guess.
    is_certain: bool,
}

impl Met {
    /// How often one attempt runs a body whose session a limit ends, because the next try is as
    /// slow. `None` if the session may have ended for another reason.
    pub(crate) fn most_tries(&self) -> Option<u32> {
        match (self.limit.ends_session(), self.is_certain) {
            (true, true) => Some(1),
            (true, false) => Some(2),
            (false, _) => None,
        }
    }

    pub(crate) fn is_certain(&self) -> bool {
        self.is_certain
    }

    /// The name of the setting, for logs.
    pub(crate) fn setting(&self) -> &'static str {
        self.limit.setting()
    }

    /// A failure with the setting as its message and the database error as its cause.
    pub(crate) fn explain(&self, failure: Failure) -> Failure {
        let (setting, shown) = (self.limit.setting(), &self.shown);
        let (what, instead) = match (self.limit, self.is_certain) {
            (Limit::Idle, true) => (
                "the server ended the body's session, because its transaction rested for longer than",
                "do slow work before the transaction",
            ),
            (Limit::Transaction, true) => (
                "the server ended the body's session, because its transaction lasted for longer than",
                "do slow work before the transaction",
            ),
            (Limit::Idle | Limit::Transaction, false) => (
                "the body's session was lost; the server may have ended it, because the transaction had lasted for longer than",
                "if the server says so in its log, do slow work before the transaction",
            ),
            (Limit::Statement, _) => (
                "the server gave a statement of the body's transaction up after",
                "make the statement faster",
            ),
            (Limit::Lock, _) => (
                "the server gave a statement of the body's transaction up, because it waited for a lock for longer than",
                "hold locks for shorter",
            ),
        };
        let message = format!(
            "{what} `{setting}` (`{shown}`); nothing was written; {instead}, or raise the setting: `alter role … set {setting} = …`"
        );
        let causes = std::iter::once(failure.message).chain(failure.causes).collect();
        Failure { message, causes, ..failure }
    }
}

/// Finds the limit that rolled back a body's transaction after `lasted`. Queries the database only
/// if `cause` allows a limit.
pub(crate) async fn met(attempt: &Attempt, cause: Cause, lasted: Duration) -> Option<Met> {
    match cause.reason {
        Reason::Limit(_) | Reason::Lost => {}
        Reason::ReadOnly | Reason::Exhausted | Reason::Privilege | Reason::Other => return None,
    }
    let ask = async { limits(&mut *attempt.db.acquire().await?).await };
    let set = with_timeout(ASKING, ask).await.unwrap_or_default();
    explained(&set, cause.reason, lasted)
}

fn explained(set: &[SetLimit], reason: Reason, lasted: Duration) -> Option<Met> {
    let met =
        |limit: &SetLimit, is_certain| Met { limit: limit.limit, shown: limit.shown.clone(), is_certain };
    match reason {
        Reason::Limit(limit) => match set.iter().find(|set| set.limit == limit && set.after <= lasted) {
            Some(set) => Some(met(set, true)),
            // The body set a limit itself.
            None if limit.ends_session() => {
                Some(Met { limit, shown: "set in this session".to_owned(), is_certain: true })
            }
            // Another session cancelled the statement, or it used `nowait`.
            None => None,
        },
        // The shortest limit that can end a session and that the transaction exceeded.
        Reason::Lost => {
            let reached = set.iter().filter(|set| set.limit.ends_session() && set.after <= lasted);
            reached.min_by_key(|set| set.after).map(|set| met(set, false))
        }
        Reason::ReadOnly | Reason::Exhausted | Reason::Privilege | Reason::Other => None,
    }
}

/// A change by the body to its own transaction that prevents the engine from recording in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meddling {
    ReadOnly,
    Role,
}

impl Meddling {
    /// Finds the change. `may` is what the session may do after the rollback.
    ///
    /// Without the role that the body left (`role`), a change of the role is only a suspicion: the
    /// engine's own role can lack a privilege that `may` does not cover.
    pub(crate) fn of(cause: Cause, may: &May, role: Option<&[u8]>) -> Option<Self> {
        match cause.reason {
            Reason::ReadOnly if may.is_writable => Some(Self::ReadOnly),
            Reason::Privilege if may.is_permitted && role.is_none_or(|role| role != may.role) => {
                Some(Self::Role)
            }
            _ => None,
        }
    }

    /// Whether the body may be the cause.
    pub(crate) fn is_possible(cause: Cause) -> bool {
        match cause.class {
            Class::Refused | Class::Transient => matches!(cause.reason, Reason::ReadOnly | Reason::Privilege),
            Class::Conflict | Class::Permanent => false,
        }
    }

    pub(crate) fn failure(self, said: Failure) -> Failure {
        let message = match self {
            Self::ReadOnly => {
                "the body made its transaction read-only (`set transaction read only`), so neither its writes nor its record can be committed; nothing was \
                 written; leave `tx` writable, and read in a transaction of `db.begin()`"
            }
            Self::Role => {
                "the body changed the role of its transaction (`set role`, `set session authorization`), and that role may not write to the schema \
                 `runledger`; nothing was written; end the body with `reset role`, or grant the role what the engine's own has"
            }
        };
        let causes = std::iter::once(said.message).chain(said.causes).collect();
        Failure { causes, ..Failure::new(FailureKind::Setup, message) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(limit: Limit, seconds: u64) -> SetLimit {
        SetLimit { limit, after: Duration::from_secs(seconds), shown: format!("{seconds}s") }
    }

    fn found(set: &[SetLimit], reason: Reason, lasted: u64) -> Option<(Limit, bool)> {
        explained(set, reason, Duration::from_secs(lasted)).map(|met| (met.limit, met.is_certain))
    }

    #[test]
    fn limit_named_by_server_is_certain() {
        let all =
            [set(Limit::Idle, 1), set(Limit::Transaction, 2), set(Limit::Statement, 3), set(Limit::Lock, 4)];
        for limit in Limit::ALL {
            assert_eq!(found(&all, Reason::Limit(limit), 9), Some((limit, true)));
        }
    }

    #[test]
    fn unreached_configured_limit_is_not_named() {
        let all = Limit::ALL.map(|limit| set(limit, 3600));
        for limit in [Limit::Statement, Limit::Lock] {
            assert_eq!(
                found(&all, Reason::Limit(limit), 1),
                None,
                "cancelled, `nowait`, or a setting of the body"
            );
        }
        let own = explained(&all, Reason::Limit(Limit::Idle), Duration::from_secs(1)).unwrap();
        assert_eq!(own.shown, "set in this session");
    }

    #[test]
    fn cancelled_statement_without_limit_names_no_limit() {
        assert_eq!(found(&[], Reason::Limit(Limit::Statement), 9), None);
        assert_eq!(found(&[set(Limit::Idle, 1)], Reason::Limit(Limit::Lock), 9), None);
        assert_eq!(
            found(&[], Reason::Limit(Limit::Idle), 9),
            Some((Limit::Idle, true)),
            "the body has set it"
        );
    }

    #[test]
    fn lost_session_is_explained_by_reached_limit() {
        let both = [set(Limit::Transaction, 5), set(Limit::Idle, 2), set(Limit::Lock, 1)];
        assert_eq!(found(&both, Reason::Lost, 1), None);
        assert_eq!(found(&both, Reason::Lost, 3), Some((Limit::Idle, false)));
        assert_eq!(found(&both, Reason::Lost, 9), Some((Limit::Idle, false)));
        assert_eq!(found(&both, Reason::Other, 9), None);
    }

    #[test]
    fn guessed_limit_is_reported_as_guess() {
        let told = |is_certain| {
            let met = Met { limit: Limit::Idle, shown: "2s".to_owned(), is_certain };
            met.explain(Failure::new(FailureKind::Error, "closed")).message
        };
        assert!(told(false).contains("was lost; the server may have ended it"), "{}", told(false));
        assert!(!told(true).contains("may have"), "{}", told(true));
    }

    #[test]
    fn server_refusal_is_distinguished_from_meddling_body() {
        let [may, may_not] =
            [true, false].map(|it| May { is_writable: it, is_permitted: it, role: b"engine".to_vec() });
        let read_only = Cause { class: Class::Refused, reason: Reason::ReadOnly };
        let role = Cause { class: Class::Transient, reason: Reason::Privilege };
        assert_eq!(Meddling::of(read_only, &may, None), Some(Meddling::ReadOnly));
        assert_eq!(Meddling::of(role, &may, None), Some(Meddling::Role));
        assert_eq!(Meddling::of(role, &may, Some(b"body")), Some(Meddling::Role));
        assert_eq!(Meddling::of(role, &may, Some(b"engine")), None);
        assert_eq!([read_only, role].map(|cause| Meddling::of(cause, &may_not, None)), [None, None]);
    }
}
