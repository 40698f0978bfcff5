//! The tail of a replaced server: commits that it acknowledged and that its successor lacks,
//! because an asynchronous standby had not received them.

use std::collections::{HashMap, HashSet};

use anyhow::Result;
use runledger_tests::check::calls::{Submission, Told};
use runledger_tests::check::place::now_us;
use runledger_tests::check::{Event, Facts};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use crate::load::History;

/// A lost tail may begin up to this much before its first lost claim. Under load a claim follows
/// soon.
const BEFORE_US: i64 = 1_000_000;

/// The runs and claims of a server.
#[derive(Clone, Debug, Default)]
pub struct Content {
    /// The runs.
    pub runs: HashSet<Uuid>,
    /// The tokens of claims, with the time of each claim in microseconds since 1970.
    pub claims: HashMap<Uuid, i64>,
    /// The periods whose acknowledged work may be lost.
    tails: Vec<(i64, i64)>,
}

impl Content {
    /// Reads the runs and claims of a database.
    ///
    /// # Errors
    /// The database did not answer.
    pub async fn of(url: &str) -> Result<Self> {
        let mut connection = PgConnection::connect(url).await?;
        let runs = sqlx::query_scalar("select run_id from runledger.run");
        let runs: Vec<Uuid> = runs.fetch_all(&mut connection).await?;
        let claims = sqlx::query_as("select token, (extract(epoch from at) * 1e6)::int8 from audit.claim");
        let claims: Vec<(Uuid, i64)> = claims.fetch_all(&mut connection).await?;
        connection.close().await?;
        Ok(Self { runs: runs.into_iter().collect(), claims: claims.into_iter().collect(), tails: Vec::new() })
    }

    /// Returns what this server has and its successor lacks.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let lost = self.claims.iter().filter(|(token, _)| !other.claims.contains_key(token));
        let claims: HashMap<Uuid, i64> = lost.map(|(token, at_us)| (*token, *at_us)).collect();
        let tails = claims.values().min().map(|first_us| (first_us - BEFORE_US, now_us()));
        let runs = self.runs.difference(&other.runs).copied().collect();
        Self { runs, claims, tails: tails.into_iter().collect() }
    }

    /// Whether nothing was lost.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.claims.is_empty()
    }

    /// Adds another server's content.
    pub fn extend(&mut self, other: Self) {
        self.runs.extend(other.runs);
        self.claims.extend(other.claims);
        self.tails.extend(other.tails);
    }

    /// Returns the runs to which something happened in a lost tail. For these runs the history and
    /// the database may differ.
    #[must_use]
    pub fn touched(&self, events: &[Event], history: &History) -> HashSet<Uuid> {
        let in_tail = |from_us: i64, until_us: i64| {
            self.tails.iter().any(|tail| from_us <= tail.1 && tail.0 <= until_us)
        };
        let events = events.iter().map(|event| (event.run_id, event.at_us, event.at_us));
        let signals = history.signals.iter().map(|sent| (sent.run_id, sent.at_us, sent.at_us));
        let pauses = history.pauses.iter().map(|pause| (pause.run_id, pause.from_us, pause.until_us));
        let revoked = history.revoked.iter().map(|link| (link.run_id, link.from_us, link.until_us));
        let all = events.chain(signals).chain(pauses).chain(revoked);
        let touched = all.filter(|(_, from, until)| in_tail(*from, *until));
        touched.map(|(run_id, ..)| run_id).collect()
    }

    /// Removes acknowledged calls whose runs were lost with a server and have not come back.
    /// Returns how many.
    pub fn forgive(&self, submissions: &mut Vec<Submission>, there: &HashSet<Uuid>) -> usize {
        let n_before = submissions.len();
        let is_lost = |run_id: Uuid| self.runs.contains(&run_id) && !there.contains(&run_id);
        submissions
            .retain(|submission| submission.told != Told::Ok || !submission.run_id.is_some_and(is_lost));
        n_before - submissions.len()
    }

    /// Removes the events of bodies whose claims were lost. Their results were lost too, and their
    /// runs may have been claimed again. Returns the number of events.
    pub fn forget_bodies(&self, events: &mut Vec<Event>, facts: &Facts) -> usize {
        let n_before = events.len();
        let is_lost = |event: &Event| {
            self.claims.contains_key(&event.token) && facts.claim_with(event.run_id, event.token).is_none()
        };
        events.retain(|event| !is_lost(event));
        n_before - events.len()
    }
}

#[test]
fn lost_tail_touches_only_runs_with_overlapping_events_or_pauses() {
    use runledger_tests::check::What;
    use runledger_tests::check::pauses::Pause;

    let lost = Content { tails: vec![(10, 20)], ..Content::default() };
    let [bodied, paused, other] = [(); 3].map(|()| Uuid::now_v7());
    let event =
        |run_id, at_us| Event { what: What::Start, run_id, key: String::new(), token: run_id, pid: 1, at_us };
    let pauses = vec![Pause { run_id: paused, from_us: 5, until_us: 30 }];
    let history = History { pauses, ..History::default() };
    let touched = lost.touched(&[event(bodied, 15), event(other, 25)], &history);
    assert_eq!(touched, HashSet::from([bodied, paused]));
}
