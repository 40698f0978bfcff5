//! Detects a server that a promoted standby has replaced, by comparing timelines: the replaced
//! server is on an older timeline.
//!
//! Each new session of the engine reads the server's timeline. If the old server is still running,
//! the address may lead to it again. A process that has met the promoted server at an address
//! refuses sessions on an older timeline there. It also closes its sessions from before, because
//! they may lead to the old server ([`ServerEpoch`]). Writes that the old server acknowledges until
//! then are lost.
//!
//! A process that has not met the promoted server cannot detect the old one. Two standbys that were
//! promoted separately are on the same timeline, so the engine cannot detect the wrong one. An
//! application's own pool is not checked.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::postgres::PgConnectOptions;
use sqlx::{PgConnection, Row};

use super::server::server_key;
use crate::store::sql;

/// A pool sets the age of a session at most this long after the session was
/// [admitted](Address::admit).
const MARGIN: Duration = Duration::from_millis(100);

/// A server that has been replaced.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this server is on timeline {met}, and this process has worked on timeline {newest} of the same database system: a standby was promoted in its place; \
     nothing was written; lead the address to the promoted server and stop this one, or, if it is this one that is to go on, start the process anew"
)]
struct Replaced {
    met: String,
    newest: String,
}

/// A host or socket with its port, and the servers that this process has met there. Another address
/// may serve a copy of the same database system, made from a backup. Such a copy replaces no server
/// here.
#[derive(Debug, Default)]
pub(crate) struct Address(Mutex<Met>);

#[derive(Debug, Default)]
struct Met {
    /// The newest timeline of each database system. A server that was created again, for example
    /// from a dump, starts at the first timeline.
    newest: BTreeMap<String, String>,
    /// When this process last met a promoted server in place of another.
    moved_at: Option<Instant>,
}

impl Address {
    /// Returns the address of these options. The process has one for each address, for its whole
    /// life.
    pub(crate) fn of(options: &PgConnectOptions) -> Arc<Self> {
        static ADDRESSES: Mutex<BTreeMap<String, Arc<Address>>> = Mutex::new(BTreeMap::new());
        let mut addresses = ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(addresses.entry(server_key(options)).or_default())
    }

    /// Refuses a session on an older timeline than this process has met here.
    pub(crate) async fn admit(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        // The simple protocol works with any pooler.
        let row = match sqlx::raw_sql(sql::TIMELINE).fetch_one(connection).await {
            Err(sqlx::Error::Database(error)) if error.code().is_some_and(|code| is_kept_secret(&code)) => {
                tracing::debug!(%error, "the server does not tell its timeline");
                return Ok(());
            }
            row => row?,
        };
        let (system, met): (String, Option<String>) = (row.try_get("system")?, row.try_get("timeline")?);
        let Some(met) = met else { return Ok(()) };
        self.meet(system, met).map_err(|replaced| sqlx::Error::Io(io::Error::other(replaced)))
    }

    /// Timelines have eight hexadecimal digits, so they sort as texts.
    fn meet(&self, system: String, timeline: String) -> Result<(), Replaced> {
        let mut met = self.met();
        match met.newest.get(&system) {
            Some(newest) if *newest > timeline => {
                return Err(Replaced { met: timeline, newest: newest.clone() });
            }
            Some(newest) if *newest < timeline => {
                tracing::warn!(
                    from = newest,
                    to = timeline,
                    "a promoted server has taken the place of another; sessions of before are given up"
                );
                met.moved_at = Some(Instant::now());
            }
            Some(_) | None => {}
        }
        met.newest.insert(system, timeline);
        Ok(())
    }

    /// Whether a pooled session of this age may lead to a replaced server.
    pub(crate) fn has_moved_within(&self, age: Duration) -> bool {
        self.met().moved_at.is_some_and(|at| at.elapsed() <= age + MARGIN)
    }

    fn met(&self) -> MutexGuard<'_, Met> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A period in which no promoted server replaces another at an address. Code that keeps a session
/// for long begins an epoch before it opens the session. It closes the session when the epoch is
/// over.
#[derive(Debug)]
pub(crate) struct ServerEpoch {
    address: Arc<Address>,
    since: Instant,
}

impl ServerEpoch {
    pub(crate) fn begin(options: &PgConnectOptions) -> Self {
        Self { address: Address::of(options), since: Instant::now() }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.address.met().moved_at.is_some_and(|at| at >= self.since)
    }

    /// An epoch that is over.
    #[cfg(test)]
    pub(crate) fn over() -> Self {
        let since = Instant::now();
        let met = Met { moved_at: Some(since), ..Met::default() };
        Self { address: Arc::new(Address(Mutex::new(met))), since }
    }
}

/// Whether this error means that the server never reveals its system or its log, so that there is
/// nothing to compare. The role lacks a privilege, or the server has no such function. Any other
/// error may pass.
fn is_kept_secret(code: &str) -> bool {
    ["42501", "42883", "0A000"].contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meet(address: &Address, system: &str, timeline: &str) -> Result<(), Replaced> {
        address.meet(system.to_owned(), timeline.to_owned())
    }

    fn at(port: u16) -> PgConnectOptions {
        PgConnectOptions::new_without_pgpass().host("timeline.invalid").port(port)
    }

    #[test]
    fn older_timeline_is_refused_after_newer_one_was_met() {
        let address = Address::default();
        for (system, timeline) in [("a", "00000009"), ("a", "0000000A"), ("b", "00000001"), ("a", "0000000A")]
        {
            assert_eq!(meet(&address, system, timeline), Ok(()), "{system} {timeline}");
        }
        let refused = Replaced { met: "00000009".to_owned(), newest: "0000000A".to_owned() };
        assert_eq!(meet(&address, "a", "00000009"), Err(refused));
    }

    #[test]
    fn copy_at_another_address_replaces_no_server() {
        let (production, copy) = (at(1), at(2));
        let era = ServerEpoch::begin(&production);
        assert_eq!(meet(&Address::of(&production), "a", "00000001"), Ok(()));
        assert_eq!(meet(&Address::of(&copy), "a", "00000002"), Ok(()));
        assert_eq!(meet(&Address::of(&production), "a", "00000001"), Ok(()));
        assert!(!era.is_over());
    }

    #[test]
    fn promotion_ends_earlier_sessions_and_keeps_later_ones() {
        let address = Address::of(&at(3));
        let life = ServerEpoch::begin(&at(3));
        for (system, timeline) in [("a", "00000001"), ("b", "00000007"), ("a", "00000001")] {
            assert_eq!(meet(&address, system, timeline), Ok(()));
            assert!(!life.is_over(), "{system} {timeline}");
            assert!(!address.has_moved_within(Duration::MAX / 2), "{system} {timeline}");
        }
        assert_eq!(meet(&address, "a", "00000002"), Ok(()));
        assert!(life.is_over());
        assert!(address.has_moved_within(life.since.elapsed()));
        assert!(!ServerEpoch::begin(&at(3)).is_over());
        address.met().moved_at = Instant::now().checked_sub(MARGIN * 3);
        assert!(!address.has_moved_within(MARGIN));
    }

    #[test]
    fn only_server_unable_to_report_timeline_is_trusted_without_it() {
        for code in ["42501", "42883", "0A000"] {
            assert!(is_kept_secret(code), "{code}");
        }
        for code in ["57014", "53100", "53200", "53300", "57P01", "57P03", "XX001", "58030", "25006"] {
            assert!(!is_kept_secret(code), "{code}");
        }
    }
}
