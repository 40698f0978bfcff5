//! The state of a claimer: a cursor per lane, the next due instant, and whether the database
//! records the worker as asleep.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use tokio::time::Instant;

use super::backlog_scan::{Scanned, Scanner};
use super::claimer::{FIRST_IDLE_POLL, FIRST_PAUSE, MAX_BATCH};
use super::permits::Permits;
use crate::connection::outage::Outage;
use crate::connection::session::Session;
use crate::model::timestamp::Timestamp;
use crate::store::worker::claim::{Lane, Position, Reading, Scan};
use crate::store::worker::set_aside::SetAside;

/// The cursor of an empty lane is this far in the past. The next scan finds a run whose transaction
/// took longer to commit.
const STILL_COMMITTING: Duration = Duration::from_secs(1);

/// The furthest due instant that a claimer remembers.
pub(crate) const FAR: Duration = Duration::from_secs(24 * 60 * 60);

/// How many lanes a claimer remembers besides the worker's own. Above this number it forgets the
/// empty ones; a scan finds them again.
const MAX_LANES: usize = 256;

/// The sleep state of a worker in the database. An enqueue reads it to decide whether to notify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KnownAs {
    Awake,
    Asleep,
    /// The reply to the last update was lost.
    Unknown,
}

/// How many runs the next claim may take. A failed claim sets it to one, because the records of
/// several runs may be more than one claim can read within its time limit. Each success doubles it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchLimit(usize);

impl Default for BatchLimit {
    fn default() -> Self {
        Self(MAX_BATCH)
    }
}

impl BatchLimit {
    /// The limit of the next claim of a worker with `n_free` free slots.
    pub(crate) fn of(self, n_free: usize) -> usize {
        n_free.min(self.0)
    }

    pub(crate) fn apply<T, E>(&mut self, claimed: &Result<T, E>) {
        self.0 = if claimed.is_ok() { (self.0 * 2).min(MAX_BATCH) } else { 1 };
    }
}

pub(crate) struct ClaimState {
    pub(crate) connection: Option<PoolConnection<Postgres>>,
    pub(crate) positions: BTreeMap<Lane, Position>,
    /// The lanes of this worker's jobs, at their own priorities.
    pub(crate) own: BTreeSet<Lane>,
    pub(crate) scanner: Scanner,
    pub(crate) permits: Permits,
    /// The lowest priority in the last claim, if that claim was full. More runs may be queued
    /// behind it.
    pub(crate) backlog: Option<i16>,
    /// When the next known run in a queue is due.
    pub(crate) next_due: Option<Instant>,
    pub(crate) pause: Duration,
    /// The batch limit of claims without a permit.
    pub(crate) batch: BatchLimit,
    /// How the next claim reads the content of its runs.
    pub(crate) reading: Reading,
    /// Whether the last claim reached its limit.
    pub(crate) was_full: bool,
    pub(crate) asleep: bool,
    pub(crate) known_as: KnownAs,
    /// When the worker first claimed work after its last sleep.
    pub(crate) woken_at: Option<Instant>,
    /// How long a sleeping worker waits until its next poll.
    pub(crate) nap: Duration,
    /// Whether the last pause ended without a wake-up.
    pub(crate) unprompted: bool,
    /// The outage of failing claims.
    pub(crate) outage: Outage,
    /// The outage of failing timer wake-ups.
    pub(crate) timers_outage: Outage,
    /// Runs that could not be woken.
    pub(crate) timers_aside: SetAside,
}

impl ClaimState {
    pub(crate) fn new(own: BTreeSet<Lane>, registered_at: Timestamp) -> Self {
        // The first scan finds runs that were queued before.
        let positions = own.iter().map(|lane| (lane.clone(), dead_before(registered_at))).collect();
        Self {
            connection: None,
            positions,
            own,
            scanner: Scanner::default(),
            permits: Permits::default(),
            backlog: None,
            next_due: None,
            pause: FIRST_PAUSE,
            batch: BatchLimit::default(),
            reading: Reading::AtOnce,
            was_full: false,
            asleep: false,
            known_as: KnownAs::Awake,
            woken_at: None,
            nap: FIRST_IDLE_POLL,
            unprompted: false,
            outage: Outage::new(),
            timers_outage: Outage::new(),
            timers_aside: SetAside::default(),
        }
    }

    /// Applies the result of a scan. Returns whether a run is due.
    pub(crate) fn apply_scan(&mut self, (began, Scan { now, firsts, need_permits }): Scanned) -> bool {
        if need_permits {
            self.permits.request();
        }
        if self.positions.len() > self.own.len() + MAX_LANES {
            self.positions.retain(|lane, _| firsts.contains_key(lane) || self.own.contains(lane));
        }
        // Entries before the first live run of a lane are dead: a million of them under an old
        // snapshot. Moving the cursor forward spares claims from reading them.
        for (lane, position) in &mut self.positions {
            if !firsts.contains_key(lane) {
                *position = (*position).max(dead_before(now));
            }
        }
        let mut is_due = false;
        for (lane, first) in firsts {
            if first.due_at <= now {
                is_due = true;
                // Move the cursor back, even if a claim has taken this run since. The next claim
                // then reads the entries that died during the scan.
                self.positions.insert(lane, first.before);
            } else {
                self.schedule_wake(began + first.due_at.since(now).min(FAR));
                // Runs that become due now sort before this one.
                let position = self.positions.entry(lane).or_insert(dead_before(now));
                *position = (*position).max(dead_before(now)).min(first.before);
            }
        }
        is_due
    }

    /// Whether enqueues notify this worker. If they do, a claim without a wake-up would find
    /// nothing.
    pub(crate) fn is_told(&self) -> bool {
        self.known_as == KnownAs::Asleep
    }

    /// Notes that nothing was due at this instant.
    pub(crate) fn mark_empty(&mut self, now: Timestamp) {
        for position in self.positions.values_mut() {
            *position = (*position).max(dead_before(now));
        }
    }

    /// Notes that a run is due at `at`.
    pub(crate) fn schedule_wake(&mut self, at: Instant) {
        self.next_due = Some(self.next_due.map_or(at, |known| known.min(at)));
    }

    pub(crate) async fn connection(
        &mut self,
        session: &Session,
    ) -> Result<&mut PoolConnection<Postgres>, sqlx::Error> {
        match &mut self.connection {
            Some(connection) => Ok(connection),
            none => Ok(none.insert(session.open().await?)),
        }
    }
}

/// Caps the delay, because `Instant` could overflow. A scan finds the run long before [`FAR`].
pub(crate) fn after(delay: Duration) -> Instant {
    Instant::now() + delay.min(FAR)
}

/// The cursor for a lane that is empty at this instant.
fn dead_before(now: Timestamp) -> Position {
    Position::at(now.minus(STILL_COMMITTING))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::store::worker::claim::First;

    fn lane(job: &str) -> Lane {
        Lane { queue: "default".to_owned(), job: job.to_owned(), priority: 0 }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_unix_micros(seconds * 1_000_000)
    }

    fn claimed_at(seconds: i64) -> Position {
        Position { ready_at: at(seconds), run_id: Uuid::max() }
    }

    fn state() -> ClaimState {
        ClaimState::new(BTreeSet::from([lane("charge")]), at(1_000))
    }

    fn seen(now: i64, firsts: &[(&str, i64)]) -> Scanned {
        let first = |due_at| First { before: Position::at(at(due_at)), due_at: at(due_at) };
        let firsts = firsts.iter().map(|(job, due_at)| (lane(job), first(*due_at))).collect();
        (Instant::now(), Scan { now: at(now), firsts, need_permits: false })
    }

    #[tokio::test]
    async fn new_cursor_skips_older_entries_until_scan_moves_it_back() {
        let mut state = state();
        assert_eq!(state.positions[&lane("charge")], Position::at(at(999)));
        assert!(state.apply_scan(seen(1_001, &[("charge", 500), ("mail", 600)])));
        assert_eq!(state.positions[&lane("charge")], Position::at(at(500)));
        assert_eq!(state.positions[&lane("mail")], Position::at(at(600)));
    }

    #[tokio::test]
    async fn scan_moves_cursor_of_empty_lane_forward_and_never_back() {
        let mut state = state();
        assert!(!state.apply_scan(seen(2_000, &[])));
        assert_eq!(state.positions[&lane("charge")], Position::at(at(1_999)));
        state.positions.insert(lane("charge"), claimed_at(2_050));
        assert!(!state.apply_scan(seen(2_010, &[])), "an old one, made beside the claims");
        assert_eq!(state.positions[&lane("charge")], claimed_at(2_050));
    }

    #[tokio::test]
    async fn scan_moves_cursor_back_to_run_behind_it() {
        let mut state = state();
        state.positions.insert(lane("charge"), claimed_at(2_050));
        assert!(state.apply_scan(seen(2_051, &[("charge", 1_500)])));
        assert_eq!(state.positions[&lane("charge")], Position::at(at(1_500)));
        state.mark_empty(at(2_052));
        assert_eq!(state.positions[&lane("charge")], Position::at(at(2_051)), "once it has been claimed");
    }

    #[tokio::test(start_paused = true)]
    async fn future_run_schedules_wake_up_without_hiding_due_runs() {
        let mut state = state();
        assert!(!state.apply_scan(seen(2_000, &[("charge", 2_010), ("mail", 2_020)])));
        for job in ["charge", "mail"] {
            assert_eq!(state.positions[&lane(job)], Position::at(at(1_999)));
        }
        assert_eq!(state.next_due, Some(Instant::now() + Duration::from_secs(10)));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_scan_keeps_earliest_wake_up_counted_from_its_start() {
        let mut state = state();
        state.schedule_wake(Instant::now() + Duration::from_secs(30));
        let slow = seen(2_000, &[("charge", 2_010)]);
        tokio::time::advance(Duration::from_secs(4)).await;
        state.apply_scan(slow);
        assert_eq!(state.next_due, Some(Instant::now() + Duration::from_secs(6)));
        state.next_due = None;
        state.schedule_wake(Instant::now() + Duration::from_millis(300));
        state.apply_scan(seen(2_000, &[]));
        assert_eq!(state.next_due, Some(Instant::now() + Duration::from_millis(300)));
    }

    #[tokio::test]
    async fn excess_empty_lanes_are_forgotten_except_workers_own() {
        let mut state = state();
        for n in 0..=MAX_LANES {
            state.positions.insert(lane(&format!("job-{n}")), claimed_at(1_500));
        }
        state.apply_scan(seen(2_000, &[("job-7", 1_600)]));
        assert_eq!(state.positions.keys().collect::<Vec<_>>(), [&lane("charge"), &lane("job-7")]);
    }
}
