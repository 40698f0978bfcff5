//! Records that the database does not store for now. The writer sets them aside, with all later records of their runs, so
//! that other runs do not wait for them.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::journal::Entry;

/// The pause before the first new try of a run. It doubles, up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(10);

/// The time without a try after a failed one, as a multiple of the time that it took. Tries that end at the server's time
/// limits would otherwise take most of the writer's time.
const REST: u32 = 3;
const LONGEST_REST: Duration = Duration::from_secs(90);

/// The records that are set aside, by run.
#[derive(Debug, Default)]
pub(super) struct Aside {
    runs: HashMap<Uuid, Waiting>,
    /// Before this instant no run is tried that has failed alone.
    rests_until: Option<Instant>,
}

/// The records of one run, in their order.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) entries: VecDeque<Entry>,
    /// Whether a record of the run has failed alone.
    has_failed: bool,
    pause: Duration,
    due: Instant,
}

impl Aside {
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Whether records of this run are set aside.
    pub(super) fn has(&self, run_id: Uuid) -> bool {
        self.runs.contains_key(&run_id)
    }

    /// Appends an entry to those of its run, if any are set aside.
    pub(super) fn append(&mut self, entry: Entry) {
        if let Some(waiting) = self.runs.get_mut(&entry.run_id()) {
            waiting.entries.push_back(entry);
        }
    }

    /// Sets an entry aside that has failed alone.
    pub(super) fn set(&mut self, entry: Entry) {
        self.insert(entry, true);
    }

    /// Sets an entry aside that has failed only with others.
    pub(super) fn set_untried(&mut self, entry: Entry) {
        self.insert(entry, false);
    }

    fn insert(&mut self, entry: Entry, has_failed: bool) {
        let pause = if has_failed { FIRST_PAUSE } else { Duration::ZERO };
        let waiting =
            Waiting { entries: VecDeque::new(), has_failed, pause: FIRST_PAUSE, due: Instant::now() + pause };
        self.runs.entry(entry.run_id()).or_insert(waiting).entries.push_back(entry);
    }

    /// When the next run is to be tried.
    pub(super) fn due(&self) -> Option<Instant> {
        let next = self.runs.values().min_by_key(|waiting| (waiting.has_failed, waiting.due))?;
        let rests_until = self.rests_until.filter(|_| next.has_failed);
        Some(rests_until.map_or(next.due, |until| until.max(next.due)))
    }

    /// Takes the entries of the run that is to be tried next: one that has not failed alone, or the one that is due first.
    pub(super) fn take(&mut self) -> Option<(Uuid, Waiting)> {
        let (run_id, _) = self.runs.iter().min_by_key(|(_, waiting)| (waiting.has_failed, waiting.due))?;
        let run_id = *run_id;
        self.runs.remove_entry(&run_id)
    }

    /// Puts back what is left of a run after a new try, which `took` this long. If it succeeded, the reason of the others may
    /// be gone, and all are due. If it failed, the next pause of the run is twice as long.
    pub(super) fn tried(&mut self, run_id: Uuid, tried: Waiting, took: Duration) {
        let now = Instant::now();
        let Some(waiting) = self.runs.get_mut(&run_id) else {
            self.runs.values_mut().for_each(|waiting| waiting.due = now);
            self.rests_until = None;
            return;
        };
        waiting.entries.extend(tried.entries);
        if tried.has_failed {
            waiting.pause = (tried.pause * 2).min(LAST_PAUSE);
            self.rests_until = Some(now + took.saturating_mul(REST).min(LONGEST_REST));
        }
        waiting.due = now + waiting.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::payload::Stored;
    use crate::store::checkpoint::Fence;
    use crate::store::progress::Noted;

    fn entry(run: u128) -> Entry {
        let fence = Fence { run_id: Uuid::from_u128(run), token: Uuid::nil() };
        let noted = Noted { fence, step_key: String::new(), value: Stored::default() };
        Entry::Noted(Box::new(noted), tokio::sync::oneshot::channel().0)
    }

    /// Tries the next run, which fails or succeeds.
    fn attempt(aside: &mut Aside, fails: bool, took: u64) -> u128 {
        let (run_id, mut waiting) = aside.take().unwrap();
        if fails {
            aside.set(waiting.entries.pop_front().unwrap());
        }
        aside.tried(run_id, waiting, Duration::from_secs(took));
        run_id.as_u128()
    }

    #[tokio::test(start_paused = true)]
    async fn failed_try_is_followed_by_a_rest_of_three_times_its_length_and_at_most_90_s() {
        for (took, rest) in [(2, 6), (10, 30), (60, 90)] {
            let mut aside = Aside::default();
            (1..=500).for_each(|run| aside.set(entry(run)));
            tokio::time::advance(FIRST_PAUSE).await;
            attempt(&mut aside, true, took);
            assert_eq!(aside.due().unwrap() - Instant::now(), Duration::from_secs(rest), "{took}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn success_makes_all_others_due() {
        let mut aside = Aside::default();
        (1..=3).for_each(|run| aside.set(entry(run)));
        tokio::time::advance(FIRST_PAUSE).await;
        attempt(&mut aside, true, 10);
        attempt(&mut aside, false, 0);
        assert_eq!(aside.due(), Some(Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn run_that_has_not_failed_alone_is_tried_first_and_at_once() {
        let mut aside = Aside::default();
        aside.set(entry(1));
        tokio::time::advance(FIRST_PAUSE).await;
        assert_eq!(attempt(&mut aside, true, 10), 1);
        aside.set_untried(entry(2));
        assert_eq!(aside.due(), Some(Instant::now()));
        assert_eq!(attempt(&mut aside, true, 10), 2);
    }
}
