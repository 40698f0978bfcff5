//! When a claimer looks at its lanes from their start, and how: while that is cheap, between two claims; once it is not, on a connection of its own
//! beside them. Under an old snapshot a look meets every entry that has died since, a second for each million.

use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::serve::Session;
use crate::store::claim::{Look, lanes};

/// Looks may take a twentieth of the time.
const SHARE: u32 = 20;

/// A look that was asked for comes sooner: it waits no longer than this, or four times as long as the last one took. One slow look must not hold up every
/// run that is announced after it.
const LONGEST_DEBT: Duration = Duration::from_millis(500);
const DEBT_SHARE: u32 = 4;

/// After two in a row that took longer, no claim waits for the next. One alone may have met a busy machine.
const PROMPT: Duration = Duration::from_millis(50);
const SLOW: u32 = 2;

/// The looks of a claimer, one at a time.
#[derive(Default)]
pub(super) struct Looks {
    last: Option<Last>,
    /// How many of the last ones took long, one after the other.
    n_slow: u32,
    /// Something came that claims from positions may miss: a look follows as soon as it is affordable, however long the worker would sleep.
    is_owed: bool,
    /// The one that goes on beside the claims.
    beside: JoinSet<Beside>,
}

/// When it began, and what it saw.
type Beside = (Instant, Result<Look, sqlx::Error>);

struct Last {
    began: Instant,
    took: Duration,
}

impl Looks {
    /// Asks for a look.
    pub(super) fn owe(&mut self) {
        self.is_owed = true;
    }

    /// When the look may begin that was asked for.
    pub(super) fn owed_at(&self) -> Option<Instant> {
        (self.is_owed && self.beside.is_empty()).then(|| self.affordable_at())
    }

    /// Whether a look may begin now.
    pub(super) fn may_begin(&self) -> bool {
        self.beside.is_empty() && self.affordable_at() <= Instant::now()
    }

    /// Lets the next look begin at once.
    pub(super) fn afford(&mut self) {
        self.last = None;
    }

    /// Whether the last one began longer ago than this.
    pub(super) fn are_older_than(&self, age: Duration) -> bool {
        self.last.as_ref().is_none_or(|last| last.began.elapsed() > age)
    }

    /// Whether the next one is too slow for claims to wait for it.
    pub(super) fn are_slow(&self) -> bool {
        self.n_slow >= SLOW
    }

    /// Notes one that began then and ends now.
    pub(super) fn done(&mut self, began: Instant) {
        self.count(began);
        self.is_owed = false;
    }

    /// Begins one beside the claims.
    pub(super) fn begin(&mut self, session: &Session, queues: &[String], jobs: &[String]) {
        let (session, queues, jobs) = (session.clone(), queues.to_vec(), jobs.to_vec());
        let began = Instant::now();
        self.is_owed = false;
        self.beside.spawn(async move {
            let look = async {
                let mut connection = session.open().await?;
                session.answered(lanes(&mut connection, &queues, &jobs)).await
            };
            (began, look.await)
        });
    }

    /// What the one beside the claims saw, when it ends; never, where there is none. A failure is logged, and sees nothing.
    pub(super) async fn ended(&mut self) -> Option<Look> {
        match self.beside.join_next().await {
            Some(ended) => self.conclude(ended),
            None => std::future::pending().await,
        }
    }

    /// The same, where it has ended by now.
    pub(super) fn try_ended(&mut self) -> Option<Look> {
        let ended = self.beside.try_join_next()?;
        self.conclude(ended)
    }

    fn conclude(&mut self, ended: Result<Beside, JoinError>) -> Option<Look> {
        let found = match ended {
            Ok((began, found)) => {
                self.count(began);
                found
            }
            // It has panicked, or the runtime ends.
            Err(error) => Err(sqlx::Error::Io(error.into())),
        };
        found
            .inspect_err(|error| {
                tracing::warn!(%error, "a look for runs that claims may have missed failed; another follows");
            })
            .ok()
    }

    fn count(&mut self, began: Instant) {
        let took = began.elapsed();
        self.n_slow = if took > PROMPT { self.n_slow.saturating_add(1) } else { 0 };
        self.last = Some(Last { began, took });
    }

    fn affordable_at(&self) -> Instant {
        let Some(last) = &self.last else { return Instant::now() };
        let longest = if self.is_owed { LONGEST_DEBT.max(last.took * DEBT_SHARE) } else { Duration::MAX };
        last.began + (last.took * SHARE).min(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One between two claims.
    async fn look(looks: &mut Looks, took: Duration) -> Instant {
        let began = Instant::now();
        tokio::time::advance(took).await;
        looks.done(began);
        began
    }

    #[tokio::test(start_paused = true)]
    async fn the_dearer_a_look_the_rarer_it_is_and_one_that_is_owed_comes_sooner() {
        assert!(Looks::default().may_begin(), "the first");
        for (took, alone, owed) in [(1, 20, 20), (100, 2_000, 500), (1_000, 20_000, 4_000)] {
            let [took, alone, owed] = [took, alone, owed].map(Duration::from_millis);
            let mut looks = Looks::default();
            let began = look(&mut looks, took).await;
            assert_eq!((looks.owed_at(), looks.affordable_at()), (None, began + alone));
            looks.owe();
            assert_eq!(looks.owed_at(), Some(began + owed));
            assert!(!looks.may_begin());
            looks.afford();
            assert!(looks.may_begin());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn claims_wait_for_looks_until_two_in_a_row_were_slow() {
        let mut looks = Looks::default();
        let (slow, quick) = (PROMPT * 2, PROMPT);
        for (took, are_slow) in
            [(slow, false), (quick, false), (slow, false), (slow, true), (slow, true), (quick, false)]
        {
            look(&mut looks, took).await;
            assert_eq!(looks.are_slow(), are_slow);
        }
    }
}
