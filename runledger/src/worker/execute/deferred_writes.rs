//! Deferred records, which the database does not store for now. The writer also defers all later
//! records of their runs, so that other runs do not wait for them.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use crate::engine::group_commit::WriteItem;
use crate::store::session::WAIT_OF_A_BATCH;

/// The pause before the first retry of a run. It doubles up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(10);

/// A retry that takes this long delays other records noticeably. A wait for a lock ends sooner,
/// after [`WAIT_OF_A_BATCH`].
const SLOW: Duration = WAIT_OF_A_BATCH.saturating_mul(2);

/// After a slow retry fails, no slow run is retried for [`REST`] times its duration, at most
/// [`LONGEST_REST`]. Otherwise retries that end at the server's time limit would take most of the
/// writer's time.
const REST: u32 = 3;
const LONGEST_REST: Duration = Duration::from_secs(90);

/// The deferred records by run.
#[derive(Debug, Default)]
pub(crate) struct DeferredWrites {
    runs: HashMap<Uuid, Waiting>,
    /// No slow run is retried before this instant.
    rests_until: Option<Instant>,
}

/// The deferred records of one run, in order.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) entries: VecDeque<WriteItem>,
    /// How long the last failed try took. `None` if this run has not failed alone.
    took: Option<Duration>,
    pause: Duration,
    due: Instant,
}

impl DeferredWrites {
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Whether records of this run are deferred.
    pub(crate) fn has(&self, run_id: Uuid) -> bool {
        self.runs.contains_key(&run_id)
    }

    /// Appends an entry to its run, if the run has deferred records.
    pub(crate) fn append(&mut self, entry: WriteItem) {
        if let Some(waiting) = self.runs.get_mut(&entry.run_id()) {
            waiting.entries.push_back(entry);
        }
    }

    /// Defers an entry that failed alone, in a try that took this long.
    pub(crate) fn set(&mut self, entry: WriteItem, took: Duration) {
        let now = Instant::now();
        if took >= SLOW && self.rests_until.is_none_or(|until| until <= now) {
            self.rests_until = Some(now + took.saturating_mul(REST).min(LONGEST_REST));
        }
        self.insert(entry, Some(took), FIRST_PAUSE);
    }

    /// Defers an entry that failed only together with others.
    pub(crate) fn set_untried(&mut self, entry: WriteItem) {
        self.insert(entry, None, Duration::ZERO);
    }

    fn insert(&mut self, entry: WriteItem, took: Option<Duration>, pause: Duration) {
        let waiting =
            Waiting { entries: VecDeque::new(), took, pause: FIRST_PAUSE, due: Instant::now() + pause };
        self.runs.entry(entry.run_id()).or_insert(waiting).entries.push_back(entry);
    }

    /// When the next run is due for a retry.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.next().map(|(_, due)| due)
    }

    /// Removes the run that is due next and returns its entries.
    pub(crate) fn take(&mut self) -> Option<(Uuid, Waiting)> {
        let (run_id, _) = self.next()?;
        self.runs.remove_entry(&run_id)
    }

    /// The run that is due first. Among equals, quick runs come first; among slow ones, the run
    /// whose own pause ended first, because a rest makes all of them due at once.
    fn next(&self) -> Option<(Uuid, Instant)> {
        let due = |waiting: &Waiting| match self.rests_until {
            Some(until) if waiting.is_slow() => waiting.due.max(until),
            _ => waiting.due,
        };
        let first =
            self.runs.iter().min_by_key(|(_, waiting)| (due(waiting), waiting.is_slow(), waiting.due));
        first.map(|(run_id, waiting)| (*run_id, due(waiting)))
    }

    /// Puts back the remaining entries of a run after a retry.
    ///
    /// After a success, the cause may be gone, so the quick runs become due. If the run was slow,
    /// the slow ones become due too. After a failure, the run's next pause doubles.
    pub(crate) fn tried(&mut self, run_id: Uuid, tried: Waiting) {
        match self.runs.get_mut(&run_id) {
            Some(waiting) => {
                waiting.entries.extend(tried.entries);
                if tried.took.is_some() {
                    waiting.pause = (tried.pause * 2).min(LAST_PAUSE);
                }
                waiting.due = Instant::now() + waiting.pause;
            }
            None => {
                let was_slow = tried.is_slow();
                if !tried.entries.is_empty() {
                    self.runs.insert(run_id, Waiting { took: None, ..tried });
                }
                self.make_due(was_slow);
            }
        }
    }

    /// Makes all runs due and shortens their next pauses, because the worker stops soon.
    pub(crate) fn hasten(&mut self) {
        self.make_due(true);
        self.runs.values_mut().for_each(|waiting| waiting.pause = FIRST_PAUSE / 4);
    }

    fn make_due(&mut self, slow_too: bool) {
        let now = Instant::now();
        for waiting in self.runs.values_mut().filter(|waiting| slow_too || !waiting.is_slow()) {
            waiting.due = now;
        }
        if slow_too {
            self.rests_until = None;
        }
    }
}

impl Waiting {
    fn is_slow(&self) -> bool {
        self.took.is_some_and(|took| took >= SLOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::payload::Stored;
    use crate::store::attempt::checkpoint::Fence;
    use crate::store::attempt::progress::ProgressWrite;

    fn entry(run: u128) -> WriteItem {
        let fence = Fence { run_id: Uuid::from_u128(run), token: Uuid::nil() };
        let noted = ProgressWrite { fence, step_key: String::new(), value: Stored::default() };
        WriteItem::ProgressWrite(Box::new(noted), tokio::sync::oneshot::channel().0)
    }

    fn set(aside: &mut DeferredWrites, run: u128, took: u64) {
        aside.set(entry(run), Duration::from_secs(took));
    }

    /// Waits until a run is due and tries it. It fails after `took` seconds, or succeeds.
    async fn attempt(aside: &mut DeferredWrites, took: Option<u64>) -> u128 {
        tokio::time::sleep_until(aside.due().unwrap()).await;
        let (run_id, mut waiting) = aside.take().unwrap();
        let first = waiting.entries.pop_front().unwrap();
        if let Some(took) = took.map(Duration::from_secs) {
            tokio::time::advance(took).await;
            aside.set(first, took);
        }
        aside.tried(run_id, waiting);
        run_id.as_u128()
    }

    #[tokio::test(start_paused = true)]
    async fn failed_slow_retry_pauses_slow_runs_threefold_up_to_cap() {
        for (took, rest) in [(2, 6), (10, 30), (60, 90)] {
            let mut aside = DeferredWrites::default();
            (1..=500).for_each(|run| set(&mut aside, run, 2));
            attempt(&mut aside, Some(took)).await;
            assert_eq!(aside.due().unwrap() - Instant::now(), Duration::from_secs(rest), "{took}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn quick_run_does_not_wait_for_slow_one() {
        let mut aside = DeferredWrites::default();
        set(&mut aside, 1, 28);
        set(&mut aside, 2, 0);
        assert_eq!(aside.due().unwrap() - Instant::now(), FIRST_PAUSE);
        for pause in [2, 4, 8, 10] {
            assert_eq!(attempt(&mut aside, Some(0)).await, 2);
            assert_eq!(aside.due().unwrap() - Instant::now(), Duration::from_secs(pause));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn run_after_lock_wait_is_not_delayed_by_slow_one() {
        let mut aside = DeferredWrites::default();
        set(&mut aside, 1, 28);
        aside.set(entry(2), WAIT_OF_A_BATCH + Duration::from_millis(500));
        assert_eq!(aside.due().unwrap() - Instant::now(), FIRST_PAUSE);
        assert_eq!(attempt(&mut aside, None).await, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn success_of_slow_run_makes_all_others_due() {
        let mut aside = DeferredWrites::default();
        (1..=3).for_each(|run| set(&mut aside, run, 28));
        attempt(&mut aside, None).await;
        assert_eq!(aside.due(), Some(Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn success_of_quick_run_makes_only_quick_runs_due() {
        let mut aside = DeferredWrites::default();
        set(&mut aside, 99, 28);
        (1..=50).for_each(|run| set(&mut aside, run, 0));
        let began = Instant::now();
        for _ in 1..=50 {
            assert_ne!(attempt(&mut aside, None).await, 99);
        }
        assert_eq!(Instant::now() - began, FIRST_PAUSE);
        assert_eq!(aside.due().unwrap() - began, Duration::from_secs(84));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_runs_take_turns() {
        let mut aside = DeferredWrites::default();
        (1..=3).for_each(|run| set(&mut aside, run, 28));
        let mut tried = Vec::new();
        for _ in 0..6 {
            tried.push(attempt(&mut aside, Some(28)).await);
        }
        tried[..3].sort_unstable();
        assert_eq!(tried[..3], [1, 2, 3]);
        tried[3..].sort_unstable();
        assert_eq!(tried[3..], [1, 2, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn failure_during_pause_does_not_prolong_it() {
        let mut aside = DeferredWrites::default();
        set(&mut aside, 1, 28);
        tokio::time::advance(Duration::from_secs(60)).await;
        set(&mut aside, 2, 28);
        tokio::time::advance(Duration::from_secs(24)).await;
        assert_eq!(aside.due(), Some(Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn run_that_never_failed_alone_is_retried_immediately() {
        let mut aside = DeferredWrites::default();
        set(&mut aside, 1, 28);
        aside.set_untried(entry(2));
        assert_eq!(aside.due(), Some(Instant::now()));
        assert_eq!(attempt(&mut aside, Some(10)).await, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn run_with_remaining_entries_after_success_stays_deferred() {
        let mut aside = DeferredWrites::default();
        set(&mut aside, 1, 0);
        aside.append(entry(1));
        assert_eq!(attempt(&mut aside, None).await, 1);
        assert!(aside.has(Uuid::from_u128(1)));
    }
}
