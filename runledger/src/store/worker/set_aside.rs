//! Runs that maintenance sets aside because it fails for them: their rows are bad, or others lock
//! them. Other runs do not wait for them.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use uuid::Uuid;

use crate::store::error::{Limit, Reason, concerns_all_runs, lives, own_cause, spares_others};
use crate::store::places::has_repaired;

/// The pause after the first failure of a run. Each further failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A try of many runs that fails later than this is not repeated soon.
const LATE: Duration = Duration::from_secs(2);

/// How long a failed run comes after other runs. If it fails again soon after its pause, the pause
/// doubles.
const REMEMBERED: Duration = Duration::from_secs(600);

/// If tries take long, a pause is this many times as long as one try of all runs that are set
/// aside.
const REST: u32 = 4;

/// How long one kind of maintenance continues without a break. During this time, maintenance
/// handles no heartbeat reply and marks no worker dead.
pub(crate) const TURN: Duration = Duration::from_millis(500);

/// After this many failures in a row that may concern all runs, the remaining runs are left for the
/// next call. Examples: a locked table, a slow server, a full disk.
const FAILURES_OF_AN_OUTAGE: usize = 2;

#[derive(Debug, Default)]
pub(crate) struct SetAside {
    runs: HashMap<Uuid, Pause>,
    start: Start,
}

/// How many runs the next call tries at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Start {
    #[default]
    All,
    /// One, and twice as many after each success, because a try of many failed late.
    Few,
    /// Always one, because a try of many lost its session. The run at which it is lost again is the
    /// cause.
    One,
}

#[derive(Debug)]
struct Pause {
    end: Instant,
    length: Duration,
}

/// A search for runs. It finds the runs that failed before, and whose pause is over, after all
/// others: many of them must not hide the others.
#[derive(Debug)]
pub(crate) struct Search {
    left_out: Vec<Uuid>,
    to_retry: HashSet<Uuid>,
}

impl Search {
    /// The runs that the next query leaves out.
    pub(crate) fn left_out(&self) -> &[Uuid] {
        &self.left_out
    }

    /// Leaves these runs out of all further queries.
    pub(crate) fn leave_out(&mut self, runs: impl IntoIterator<Item = Uuid>) {
        for run_id in runs {
            self.to_retry.remove(&run_id);
            self.left_out.push(run_id);
        }
    }

    /// Includes the runs that failed before. Call it when no other run is left. Returns false if
    /// there are none, or if the search includes them already.
    pub(crate) fn retries(&mut self) -> bool {
        let to_retry = std::mem::take(&mut self.to_retry);
        self.left_out.retain(|run_id| !to_retry.contains(run_id));
        !to_retry.is_empty()
    }
}

/// The result of work that was repeated run by run.
#[derive(Debug, Default)]
pub(crate) struct Spared {
    /// The results of the work for the other runs.
    pub(crate) done: Vec<Uuid>,
    /// The runs for which the work failed, or that were left for the next call.
    pub(crate) failed: Vec<Uuid>,
}

impl SetAside {
    /// The runs to leave out.
    pub(crate) fn runs(&mut self) -> Vec<Uuid> {
        let Search { mut left_out, to_retry } = self.search();
        left_out.retain(|run_id| !to_retry.contains(run_id));
        left_out
    }

    /// Begins a search for runs.
    pub(crate) fn search(&mut self) -> Search {
        let now = Instant::now();
        self.runs.retain(|_, pause| now < pause.end + REMEMBERED);
        let is_over = |(_, pause): &(&Uuid, &Pause)| pause.end <= now;
        let to_retry = self.runs.iter().filter(is_over).map(|(run_id, _)| *run_id).collect();
        Search { left_out: self.runs.keys().copied().collect(), to_retry }
    }

    /// Sets a run aside. `took` is the duration of its last try.
    pub(crate) fn add(&mut self, run_id: Uuid, took: Duration) {
        let now = Instant::now();
        let length = match self.runs.get(&run_id) {
            None => FIRST_PAUSE,
            Some(pause) if now < pause.end => pause.length,
            Some(pause) if now < pause.end + pause.length => pause.length * 2,
            Some(_) => FIRST_PAUSE,
        };
        let length =
            if took.is_zero() { length } else { length.max(self.rest(run_id, took)).min(LONGEST_PAUSE) };
        self.runs.insert(run_id, Pause { end: now + length, length });
    }

    /// How long the runs that are set aside pause if one try takes this long.
    fn rest(&self, run_id: Uuid, took: Duration) -> Duration {
        let now = Instant::now();
        let n_others = self.runs.iter().filter(|(other, pause)| **other != run_id && now < pause.end).count();
        took.saturating_mul(REST).saturating_mul(u32::try_from(n_others + 1).unwrap_or(u32::MAX))
    }

    /// Shortens the pause of a run that failed for the first time, and probably for a reason that
    /// concerns all runs. Such a reason may be gone soon.
    fn shorten(&mut self, run_id: Uuid) {
        self.runs.insert(run_id, Pause { end: Instant::now() + FIRST_PAUSE, length: FIRST_PAUSE });
    }

    /// Sets aside the runs for which the work neither succeeded nor failed, because others have
    /// locked their rows. Otherwise the next search would begin with them again.
    pub(crate) fn add_locked(&mut self, tried: &[Uuid], spared: &Spared) {
        let handled = spared.handled();
        for run_id in tried.iter().filter(|run_id| !handled.contains(run_id)) {
            self.add(*run_id, Duration::ZERO);
        }
    }

    /// Sets a run aside if its last try ended the session. If the session lives, the error concerns
    /// all runs, and this run is not the cause.
    pub(crate) fn add_unless_alive(&mut self, run_id: Uuid, error: &sqlx::Error) {
        if lives(error) {
            self.runs.remove(&run_id);
            return;
        }
        tracing::warn!(%error, %run_id, "maintenance lost its session at a run; it tries the run again after a pause");
        // The time without an answer says nothing about the run.
        self.add(run_id, Duration::ZERO);
    }

    /// Does some work for all runs at once, or run by run if that fails. Sets aside each run for
    /// which the work then fails.
    ///
    /// A lost session ends the work. So do a few errors in a row that may concern all runs, such as
    /// a full disk. If no run has succeeded before, the last error is returned. Otherwise the
    /// remaining runs count as failed.
    pub(crate) async fn spare<F>(
        &mut self,
        connection: &mut PgConnection,
        runs: &[Uuid],
        work: F,
    ) -> Result<Spared, sqlx::Error>
    where
        F: AsyncFn(&mut PgConnection, &[Uuid]) -> Result<Vec<Uuid>, sqlx::Error>,
    {
        self.spare_within(Duration::MAX, connection, runs, work).await
    }

    /// Like [`spare`](Self::spare), but ends after about this time. A try of many runs that fails
    /// late does not count. The remaining runs count as failed, and are left for the next call.
    pub(crate) async fn spare_within<F>(
        &mut self,
        limit: Duration,
        connection: &mut PgConnection,
        runs: &[Uuid],
        work: F,
    ) -> Result<Spared, sqlx::Error>
    where
        F: AsyncFn(&mut PgConnection, &[Uuid]) -> Result<Vec<Uuid>, sqlx::Error>,
    {
        let are_many = runs.len() > 1;
        // The caller may drop this call.
        let start = if are_many { std::mem::replace(&mut self.start, Start::Few) } else { Start::All };
        // Runs that failed before come last.
        let (failed_before, fresh): (Vec<Uuid>, Vec<Uuid>) =
            runs.iter().partition(|run_id| self.runs.contains_key(*run_id));
        let ordered = [fresh, failed_before].concat();
        let mut left = ordered.as_slice();
        let mut n_at_once = if start == Start::All { left.len() } else { 1 };
        // How many of the next runs are tried alone.
        let mut n_alone = 0_usize;
        let (mut spared, mut failures) = (Spared::default(), Failures::default());
        let (mut began, mut was_late) = (Instant::now(), false);
        let end = loop {
            let (tried, rest) = left.split_at(if n_alone > 0 { 1 } else { n_at_once.min(left.len()) });
            let [run_id, others @ ..] = tried else { break Ok(()) };
            let (is_alone, is_fresh) = (others.is_empty(), !self.runs.contains_key(run_id));
            if is_alone {
                // If the caller drops this try, the next call leaves the run out.
                self.add(*run_id, Duration::ZERO);
            }
            let began_try = Instant::now();
            match Box::pin(repaired(connection, tried, &work)).await {
                Ok(done) => {
                    left = rest;
                    spared.done.extend(done);
                    failures.in_a_row = 0;
                    if is_alone {
                        self.runs.remove(run_id);
                    }
                    if n_alone == 0 && start != Start::One {
                        n_at_once *= 2;
                    }
                    n_alone = n_alone.saturating_sub(1);
                }
                Err(error) if spares_others(&error) && !is_alone => {
                    (n_alone, n_at_once) = (tried.len(), 1);
                    if began_try.elapsed() > LATE {
                        (began, was_late) = (Instant::now(), true);
                    }
                    continue;
                }
                Err(error) if spares_others(&error) => {
                    (left, n_at_once, n_alone) = (rest, 1, n_alone.saturating_sub(1));
                    tracing::warn!(%error, %run_id, "maintenance fails for a run; it goes on with others and tries again");
                    self.add(*run_id, began_try.elapsed());
                    spared.failed.push(*run_id);
                    if failures.may_be_an_outage(*run_id, is_fresh, &error) {
                        if spared.done.is_empty() {
                            failures.fresh.iter().for_each(|run_id| self.shorten(*run_id));
                        }
                        // The next call begins with other runs.
                        break Err(error);
                    }
                }
                Err(error) => {
                    if is_alone {
                        self.add_unless_alive(*run_id, &error);
                    } else if !lives(&error) {
                        self.start = Start::One;
                        return spared.or(error, left);
                    }
                    break Err(error);
                }
            }
            if began.elapsed() > limit {
                break Ok(());
            }
        };
        if are_many && (left.is_empty() || (start == Start::All && !was_late)) {
            self.start = Start::All;
        }
        match end {
            Err(error) => spared.or(error, left),
            Ok(()) => Ok(spared.leaving(left)),
        }
    }
}

/// Failures of runs that were tried alone.
#[derive(Default)]
struct Failures {
    /// The last ones, as far as their reasons may concern all runs.
    in_a_row: usize,
    /// The runs that failed for the first time, for such a reason.
    fresh: Vec<Uuid>,
}

impl Failures {
    /// Adds a failure. Returns whether the reason probably concerns all runs.
    fn may_be_an_outage(&mut self, run_id: Uuid, is_fresh: bool, error: &sqlx::Error) -> bool {
        if !has_waited(error) && !concerns_all_runs(error) {
            self.in_a_row = 0;
            return false;
        }
        self.in_a_row += 1;
        if is_fresh {
            self.fresh.push(run_id);
        }
        self.in_a_row == FAILURES_OF_AN_OUTAGE
    }
}

impl Spared {
    /// The runs for which the work succeeded or failed.
    pub(crate) fn handled(&self) -> HashSet<Uuid> {
        self.done.iter().chain(&self.failed).copied().collect()
    }

    /// The result if an error ended the work.
    fn or(self, error: sqlx::Error, left: &[Uuid]) -> Result<Self, sqlx::Error> {
        if self.done.is_empty() { Err(error) } else { Ok(self.leaving(left)) }
    }

    fn leaving(mut self, left: &[Uuid]) -> Self {
        self.failed.extend(left);
        self
    }
}

/// Whether a statement reached its limit for lock waits, or its time limit.
fn has_waited(error: &sqlx::Error) -> bool {
    matches!(own_cause(error).reason, Reason::Limit(Limit::Lock | Limit::Statement))
}

/// Repeats the work if a run was in two places and is now in one.
async fn repaired<F>(connection: &mut PgConnection, runs: &[Uuid], work: &F) -> Result<Vec<Uuid>, sqlx::Error>
where
    F: AsyncFn(&mut PgConnection, &[Uuid]) -> Result<Vec<Uuid>, sqlx::Error>,
{
    match work(connection, runs).await {
        Err(error) if has_repaired(connection, &error, runs).await? => work(connection, runs).await,
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_is_excluded_during_pause_capped_at_thirty_seconds() {
        let (mut aside, run_id) = (SetAside::default(), Uuid::from_u128(1));
        aside.add(run_id, Duration::from_secs(3600));
        assert_eq!(aside.runs(), [run_id]);
        assert_eq!(aside.runs[&run_id].length, LONGEST_PAUSE);
        let ended = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        aside.runs.get_mut(&run_id).unwrap().end = ended;
        assert!(aside.runs().is_empty());
    }

    #[test]
    fn failed_runs_are_searched_last_and_not_during_their_pause() {
        let (mut aside, paused, ready) = (SetAside::default(), Uuid::from_u128(1), Uuid::from_u128(2));
        assert!(!aside.search().retries());
        aside.add(paused, Duration::ZERO);
        aside.add(ready, Duration::ZERO);
        aside.runs.get_mut(&ready).unwrap().end = Instant::now();
        let mut search = aside.search();
        assert!(search.left_out().contains(&ready) && search.retries());
        assert_eq!(search.left_out(), [paused]);
        assert!(!search.retries());
        let mut search = aside.search();
        search.leave_out([ready]);
        assert!(!search.retries(), "the caller works on it elsewhere");
    }

    #[test]
    fn run_that_breaks_session_is_set_aside() {
        let (mut aside, run_id) = (SetAside::default(), Uuid::from_u128(1));
        aside.add_unless_alive(run_id, &sqlx::Error::WorkerCrashed);
        assert_eq!(aside.runs(), [run_id]);
        assert_eq!(aside.runs[&run_id].length, FIRST_PAUSE);
    }

    #[test]
    fn repeated_failure_doubles_pause_and_late_one_resets_it() {
        let (mut aside, run_id) = (SetAside::default(), Uuid::from_u128(1));
        aside.add(run_id, Duration::ZERO);
        aside.add(run_id, Duration::ZERO);
        assert_eq!(aside.runs[&run_id].length, FIRST_PAUSE, "one try");
        aside.runs.get_mut(&run_id).unwrap().end = Instant::now();
        aside.add(run_id, Duration::ZERO);
        assert_eq!(aside.runs[&run_id].length, FIRST_PAUSE * 2);
        aside.runs.get_mut(&run_id).unwrap().end = Instant::now().checked_sub(LONGEST_PAUSE).unwrap();
        assert!(aside.runs().is_empty());
        aside.add(run_id, Duration::ZERO);
        assert_eq!(aside.runs[&run_id].length, FIRST_PAUSE);
    }
}
