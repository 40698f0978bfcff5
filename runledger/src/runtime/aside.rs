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

/// The least pause, as a multiple of the time that one try of all runs that are set aside takes. Tries that end at the
/// server's time limit would otherwise take most of the writer's time.
const REST: u32 = 3;

/// The records that are set aside, by run.
#[derive(Debug, Default)]
pub(super) struct Aside(HashMap<Uuid, Waiting>);

/// The records of one run, in their order.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) entries: VecDeque<Entry>,
    pause: Duration,
    due: Instant,
}

impl Aside {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether records of this run are set aside.
    pub(super) fn has(&self, run_id: Uuid) -> bool {
        self.0.contains_key(&run_id)
    }

    /// Appends an entry to those of its run, if any are set aside.
    pub(super) fn append(&mut self, entry: Entry) {
        if let Some(waiting) = self.0.get_mut(&entry.run_id()) {
            waiting.entries.push_back(entry);
        }
    }

    /// Sets an entry aside. Its last try `took` this long.
    pub(super) fn set(&mut self, entry: Entry, took: Duration) {
        let n_runs = self.0.len() + usize::from(!self.has(entry.run_id()));
        let rest = took.saturating_mul(REST).saturating_mul(u32::try_from(n_runs).unwrap_or(u32::MAX));
        let pause = FIRST_PAUSE.max(rest);
        let waiting = Waiting { pause, due: Instant::now() + pause, entries: VecDeque::new() };
        self.0.entry(entry.run_id()).or_insert(waiting).entries.push_back(entry);
    }

    /// When the next run is to be tried.
    pub(super) fn due(&self) -> Option<Instant> {
        self.0.values().map(|waiting| waiting.due).min()
    }

    /// Takes the entries of the run that is to be tried next.
    pub(super) fn take(&mut self) -> Option<(Uuid, Waiting)> {
        let (run_id, _) = self.0.iter().min_by_key(|(_, waiting)| waiting.due)?;
        let run_id = *run_id;
        self.0.remove_entry(&run_id)
    }

    /// Puts back what is left of a run after a new try. If the try failed, the next pause is twice as long.
    pub(super) fn put_back(&mut self, run_id: Uuid, tried: Waiting) {
        let Some(waiting) = self.0.get_mut(&run_id) else { return };
        waiting.entries.extend(tried.entries);
        waiting.pause = waiting.pause.max((tried.pause * 2).min(LAST_PAUSE));
        waiting.due = Instant::now() + waiting.pause;
    }
}
