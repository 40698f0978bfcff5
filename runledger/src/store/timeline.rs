//! The timeline of the server behind an address: that of a server whose place a promoted standby has taken is older.
//!
//! Each new session of the engine asks, so an address that leads to the old server again, because both are still served, is refused by every process that
//! has met the promoted one. A process that never has cannot know.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};

use sqlx::{PgConnection, Row};

use super::sql;

/// Timelines are compared within one database system: a server that was made anew, as from a dump, begins at the first one again.
type Newest = BTreeMap<String, String>;

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

/// Refuses the session of a server on an older timeline than this process has met.
pub(crate) async fn refuse_replaced(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    static NEWEST: Mutex<Newest> = Mutex::new(Newest::new());
    // By the simple protocol, which works behind any pooler. A server may keep its system or its log to itself: then there is nothing to compare.
    let row = match sqlx::raw_sql(sql::TIMELINE).fetch_one(connection).await {
        Err(error) if error.as_database_error().is_some() => {
            tracing::debug!(%error, "the server does not tell its timeline");
            return Ok(());
        }
        row => row?,
    };
    let (system, met): (String, Option<String>) = (row.try_get("system")?, row.try_get("timeline")?);
    let Some(met) = met else { return Ok(()) };
    let mut newest = NEWEST.lock().unwrap_or_else(PoisonError::into_inner);
    compare(&mut newest, system, met).map_err(|replaced| sqlx::Error::Io(io::Error::other(replaced)))
}

/// Timelines are eight hexadecimal digits each, so that their order is that of the texts.
fn compare(newest: &mut Newest, system: String, met: String) -> Result<(), Replaced> {
    match newest.get(&system) {
        Some(newest) if *newest > met => Err(Replaced { met, newest: newest.clone() }),
        _ => {
            newest.insert(system, met);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_is_refused_once_a_newer_one_of_its_system_was_met() {
        let mut newest = Newest::new();
        let mut meet =
            |system: &str, timeline: &str| compare(&mut newest, system.to_owned(), timeline.to_owned());
        for (system, timeline) in [("a", "00000009"), ("a", "0000000A"), ("b", "00000001"), ("a", "0000000A")]
        {
            assert_eq!(meet(system, timeline), Ok(()), "{system} {timeline}");
        }
        let refused = Replaced { met: "00000009".to_owned(), newest: "0000000A".to_owned() };
        assert_eq!(meet("a", "00000009"), Err(refused));
    }
}
