//! When a claimer looks at its lanes from their start, and how: while that is cheap, between two claims; once it is not, on a connection of its own
//! beside them. Under an old snapshot a look meets every entry that has died since, a second for each million.

use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use crate::connection::db_timeout::with_timeout;
use crate::connection::outage::warn_outage;
use crate::connection::session::Session;
use crate::store::claim::{Scan, lanes};
use crate::store::session::{LONGEST_LOOK, for_looks};

/// Scanner may take a twentieth of the time, but are not further apart than this, or twice as long as one takes: nothing else finds a run behind the
/// positions.
const SHARE: u32 = 20;
const FURTHEST_APART: Duration = Duration::from_secs(60);

/// A look that was asked for comes sooner: it waits no longer than this, or four times as long as the last one took. One slow look must not hold up every
/// run that is announced after it.
const LONGEST_DEBT: Duration = Duration::from_millis(500);
const DEBT_SHARE: u32 = 4;

/// The pause after one that failed.
const AFTER_ERROR: Duration = Duration::from_millis(250);

/// After two in a row that took longer, no claim waits for the next. One alone may have met a busy machine.
const PROMPT: Duration = Duration::from_millis(50);
const SLOW: u32 = 2;

/// What may be outstanding when a look's own server is silent.
const SILENCE: Duration = Duration::from_secs(5);

/// What a look saw, and the instant here at which it began.
pub(crate) type Scanned = (Instant, Scan);

/// The looks of a claimer, one at a time.
#[derive(Default)]
pub(crate) struct Scanner {
    last: Option<Last>,
    /// How many of the last ones took long, one after the other.
    n_slow: u32,
    /// Something came that claims from positions may miss: a look follows as soon as it is affordable, however long the worker would sleep.
    is_owed: bool,
    /// The one that goes on beside the claims.
    beside: JoinSet<Background>,
}

/// When one beside the claims began, how long it took, and what it saw: an error, where there was no connection for it.
type Background = Result<(Instant, Duration, Result<Scan, sqlx::Error>), sqlx::Error>;

#[derive(Clone, Copy)]
struct Last {
    began: Instant,
    /// The statement alone: not the connection, and not the time until somebody came for what it saw.
    took: Duration,
    has_failed: bool,
}

impl Scanner {
    /// Asks for a look.
    pub(crate) fn request(&mut self) {
        self.is_owed = true;
    }

    /// When the look may begin that was asked for.
    pub(crate) fn requested_at(&self) -> Option<Instant> {
        (self.is_owed && self.beside.is_empty()).then(|| self.affordable_at())
    }

    /// Whether a look may begin now.
    pub(crate) fn may_begin(&self) -> bool {
        self.beside.is_empty() && self.affordable_at() <= Instant::now()
    }

    /// Whether the last one began longer ago than this.
    pub(crate) fn is_older_than(&self, age: Duration) -> bool {
        self.last.is_none_or(|last| last.began.elapsed() > age)
    }

    /// Whether the next one is too slow for claims to wait for it.
    pub(crate) fn is_slow(&self) -> bool {
        self.n_slow >= SLOW
    }

    /// Notes one between two claims that began then and ends now.
    pub(crate) fn note_inline(&mut self, began: Instant, has_failed: bool) {
        self.is_owed = false;
        self.count(began, began.elapsed(), has_failed);
    }

    /// Begins one beside the claims.
    pub(crate) fn begin(&mut self, session: &Session, queues: &[String], jobs: &[String]) {
        let (session, queues, jobs) = (session.clone(), queues.to_vec(), jobs.to_vec());
        self.is_owed = false;
        self.beside.spawn(async move {
            let mut connection = session.open().await?;
            session.with_timeout(for_looks(&mut connection)).await?;
            let began = Instant::now();
            let look = with_timeout(LONGEST_LOOK + SILENCE, lanes(&mut connection, &queues, &jobs)).await;
            Ok((began, began.elapsed(), look))
        });
    }

    /// What the one beside the claims saw, when it ends; never, where there is none. One that failed is logged, is owed again, and saw nothing.
    pub(crate) async fn next_finished(&mut self) -> Option<Scanned> {
        match self.beside.join_next().await {
            Some(ended) => self.finish(ended),
            None => std::future::pending().await,
        }
    }

    /// The same, where it has ended by now.
    pub(crate) fn try_finished(&mut self) -> Option<Scanned> {
        let ended = self.beside.try_join_next()?;
        self.finish(ended)
    }

    fn finish(&mut self, ended: Result<Background, JoinError>) -> Option<Scanned> {
        // One that has panicked, or goes with its runtime, is as one that had no connection.
        let error = match ended.unwrap_or_else(|error| Err(sqlx::Error::Io(error.into()))) {
            Ok((began, took, Ok(look))) => {
                self.count(began, took, false);
                return Some((began, look));
            }
            Ok((began, took, Err(error))) => {
                self.count(began, took, true);
                error
            }
            Err(error) => {
                // Bodies hold the pool, perhaps. The claims have a connection, which the next look shares.
                self.count(Instant::now(), Duration::ZERO, true);
                error
            }
        };
        warn_outage!(static, %error, "a look for runs that claims may have missed failed; another follows");
        None
    }

    fn count(&mut self, began: Instant, took: Duration, has_failed: bool) {
        self.is_owed |= has_failed;
        self.n_slow = if took > PROMPT { self.n_slow.saturating_add(1) } else { 0 };
        self.last = Some(Last { began, took, has_failed });
    }

    fn affordable_at(&self) -> Instant {
        let Some(Last { began, took, has_failed }) = self.last else { return Instant::now() };
        let debt = if self.is_owed { LONGEST_DEBT.max(took * DEBT_SHARE) } else { Duration::MAX };
        let at = began + (took * SHARE).min(debt).min(FURTHEST_APART.max(took * 2));
        if has_failed { at.max(began + took + AFTER_ERROR) } else { at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One between two claims.
    async fn look(scanner: &mut Scanner, took: Duration, has_failed: bool) -> Instant {
        let began = Instant::now();
        tokio::time::advance(took).await;
        scanner.note_inline(began, has_failed);
        began
    }

    fn seen() -> Scan {
        Scan {
            now: crate::model::timestamp::Timestamp::DISTANT_PAST,
            firsts: std::collections::BTreeMap::new(),
            need_permits: false,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_dearer_a_look_the_rarer_it_is_and_one_that_is_owed_comes_sooner() {
        assert!(Scanner::default().may_begin(), "the first");
        let cases = [
            (1, 20, 20),
            (100, 2_000, 500),
            (1_000, 20_000, 4_000),
            (10_000, 60_000, 40_000),
            (90_000, 180_000, 180_000),
        ];
        for (took, alone, owed) in cases {
            let [took, alone, owed] = [took, alone, owed].map(Duration::from_millis);
            let mut scanner = Scanner::default();
            let began = look(&mut scanner, took, false).await;
            assert_eq!((scanner.requested_at(), scanner.affordable_at()), (None, began + alone));
            scanner.request();
            assert_eq!(scanner.requested_at(), Some(began + owed));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn claims_wait_for_looks_until_two_in_a_row_were_slow() {
        let mut scanner = Scanner::default();
        let (slow, quick) = (PROMPT * 2, PROMPT);
        for (took, are_slow) in
            [(slow, false), (quick, false), (slow, false), (slow, true), (slow, true), (quick, false)]
        {
            look(&mut scanner, took, false).await;
            assert_eq!(scanner.is_slow(), are_slow);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_failed_is_owed_again_and_follows_soon() {
        let mut scanner = Scanner::default();
        look(&mut scanner, Duration::from_millis(1), true).await;
        assert_eq!(scanner.requested_at(), Some(Instant::now() + AFTER_ERROR));
        scanner.beside.spawn(async { Err(sqlx::Error::PoolTimedOut) });
        scanner.n_slow = SLOW;
        assert!(scanner.next_finished().await.is_none());
        assert_eq!(scanner.requested_at(), Some(Instant::now() + AFTER_ERROR));
        assert!(!scanner.is_slow(), "the next one is made on the claims' connection");
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_until_somebody_comes_for_what_a_look_saw_is_not_its_own() {
        let mut scanner = Scanner::default();
        let began = Instant::now();
        scanner.beside.spawn(async move { Ok((began, PROMPT, Ok(seen()))) });
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(scanner.try_finished().is_some());
        assert!(!scanner.is_slow());
        assert!(scanner.may_begin());
    }
}
