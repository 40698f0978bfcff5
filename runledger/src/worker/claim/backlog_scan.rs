//! Schedules scans: reads of every lane from its start, which find runs that claims from cursors
//! miss.
//!
//! A fast scan runs between two claims, a slow one on its own connection beside the claims. An old
//! snapshot makes scans slow: a scan then reads every index entry that has died since, about 1 s
//! per million.

use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use crate::connection::db_timeout::with_timeout;
use crate::connection::outage::warn_outage;
use crate::connection::session::Session;
use crate::store::session::{LONGEST_LOOK, for_looks};
use crate::store::worker::claim::{Scan, lanes};

/// Scans take at most 1/20 of the time. They start at most 60 s apart, or twice the duration of one
/// scan if that is longer: nothing else finds a run before the cursors.
const SHARE: u32 = 20;
const FURTHEST_APART: Duration = Duration::from_secs(60);

/// A requested scan starts within 500 ms, or four times the duration of the last one. Otherwise one
/// slow scan would delay every run announced after it.
const LONGEST_DEBT: Duration = Duration::from_millis(500);
const DEBT_SHARE: u32 = 4;

/// The pause after a failed scan.
const AFTER_ERROR: Duration = Duration::from_millis(250);

/// After two scans in a row above this limit, claims no longer wait for scans. One slow scan may
/// only mean a busy machine.
const PROMPT: Duration = Duration::from_millis(50);
const SLOW: u32 = 2;

/// How long a scan waits beyond the server's own limit before the server counts as silent.
const SILENCE: Duration = Duration::from_secs(5);

/// The start of a scan, by the local clock, and its result.
pub(crate) type Scanned = (Instant, Scan);

/// Schedules the scans of one claimer, one at a time.
#[derive(Default)]
pub(crate) struct Scanner {
    last: Option<Last>,
    /// How many scans in a row were slow.
    n_slow: u32,
    /// Whether a scan is requested, because claims from cursors may miss a run. It starts as soon
    /// as the time share allows, even if the worker would sleep longer.
    is_owed: bool,
    /// The scan that runs beside the claims.
    beside: JoinSet<Background>,
}

/// The start of a background scan, its duration and its result. An error if it had no connection.
type Background = Result<(Instant, Duration, Result<Scan, sqlx::Error>), sqlx::Error>;

#[derive(Clone, Copy)]
struct Last {
    began: Instant,
    /// The duration of the statement, without connecting and without the wait to be joined.
    took: Duration,
    has_failed: bool,
}

impl Scanner {
    /// Requests a scan.
    pub(crate) fn request(&mut self) {
        self.is_owed = true;
    }

    /// When a requested scan may start. `None` if none is requested or one is running.
    pub(crate) fn requested_at(&self) -> Option<Instant> {
        (self.is_owed && self.beside.is_empty()).then(|| self.affordable_at())
    }

    /// Whether a scan may start now.
    pub(crate) fn may_begin(&self) -> bool {
        self.beside.is_empty() && self.affordable_at() <= Instant::now()
    }

    /// Whether the last scan began longer ago than `age`.
    pub(crate) fn is_older_than(&self, age: Duration) -> bool {
        self.last.is_none_or(|last| last.began.elapsed() > age)
    }

    /// Whether claims should not wait for the next scan.
    pub(crate) fn is_slow(&self) -> bool {
        self.n_slow >= SLOW
    }

    /// Notes an inline scan, made between two claims, that ends now.
    pub(crate) fn note_inline(&mut self, began: Instant, has_failed: bool) {
        self.is_owed = false;
        self.count(began, began.elapsed(), has_failed);
    }

    /// Starts a scan beside the claims.
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

    /// Waits for the background scan. Pending forever if none is running. Logs a failure, requests
    /// another scan, and returns `None`.
    pub(crate) async fn next_finished(&mut self) -> Option<Scanned> {
        match self.beside.join_next().await {
            Some(ended) => self.finish(ended),
            None => std::future::pending().await,
        }
    }

    /// Like [`Self::next_finished`], but does not wait.
    pub(crate) fn try_finished(&mut self) -> Option<Scanned> {
        let ended = self.beside.try_join_next()?;
        self.finish(ended)
    }

    fn finish(&mut self, ended: Result<Background, JoinError>) -> Option<Scanned> {
        // A scan that panicked or lost its runtime counts as one without a connection.
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
                // Bodies may hold the whole pool. The next scan runs inline, on the claimer's
                // connection.
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

    /// Runs a scan between two claims.
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
    async fn scan_pause_grows_with_duration_and_shrinks_when_requested() {
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
    async fn scanner_is_slow_only_after_two_consecutive_slow_scans() {
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
    async fn failed_scan_is_requested_again_soon() {
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
    async fn wait_for_scan_result_does_not_count_as_scan_duration() {
        let mut scanner = Scanner::default();
        let began = Instant::now();
        scanner.beside.spawn(async move { Ok((began, PROMPT, Ok(seen()))) });
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(scanner.try_finished().is_some());
        assert!(!scanner.is_slow());
        assert!(scanner.may_begin());
    }
}
