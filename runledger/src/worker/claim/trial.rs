//! Trials: after two crashes, a worker executes a run with no other suspect in its process. The
//! next crash then has one cause.
//!
//! See docs/decisions/0018-crash-suspects.md. Without suspects, trials cost nothing.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use super::claim_cursors::ClaimState;
use super::claimer::{AFTER_ERROR, Claimer};
use crate::connection::outage::warn_outage;
use crate::connection::task;
use crate::model::run::settle::{MAX_CRASHES, SUSPECT};
use crate::store::attempt::checkpoint::Fence;
use crate::store::worker;
use crate::store::worker::claim::{Claimed, Earlier, Lane, wake_sleeping};
use crate::worker::in_flight::Slot;

/// A run older than this does not count as a suspect during the trial of another run. This bounds
/// how long a trial stops its worker from claiming.
const COMPANY: Duration = Duration::from_secs(10);

/// If another run may be the cause, a run is not blocked at [`MAX_CRASHES`]. Its trials then wait
/// longer for other runs to end: twice as long after each further crash, and at most this long.
const LONGEST_COMPANY: Duration = Duration::from_secs(300);

/// A trial lasts twice as long as the run's longest unsuccessful attempt, and at least this long.
/// Then the attempt continues and the worker claims again.
const SHORTEST: Duration = Duration::from_secs(1);

/// The limit of a run's first trial. Without it, long runs that were killed from outside would stop
/// their workers from claiming for long. Each further crash doubles the limit, so that a run that
/// crashes late gets a long enough trial.
const FIRST_LONGEST: Duration = Duration::from_secs(10);

/// The upper limit of every trial. A run that crashes later than this after its start is never
/// blocked.
const LONGEST: Duration = Duration::from_secs(3600);

/// How long a trial waits until the other suspects are back in their queues. A trigger or a locked
/// table can delay them.
const GIVING_BACK: Duration = Duration::from_secs(5);

/// How often a trial checks whether it is over.
const LOOK: Duration = Duration::from_millis(100);

/// Whether this run may execute only without other suspects in the process.
pub(crate) fn is_suspect(run: &Claimed) -> bool {
    run.counters.crashes >= SUSPECT
}

/// How long a trial lasts if the attempt does not end first.
fn length(earlier: Earlier) -> Duration {
    let n_since = earlier.n_crashes.saturating_sub(SUSPECT.unsigned_abs());
    let longest = FIRST_LONGEST.saturating_mul(2_u32.saturating_pow(n_since)).min(LONGEST);
    earlier.longest.saturating_mul(2).min(longest).max(SHORTEST)
}

/// The age from which another run may execute beside the trial of a run with this many crashes.
fn company(crashes: i32) -> Duration {
    let n_excused = (crashes - MAX_CRASHES + 1).max(0).unsigned_abs();
    COMPANY.saturating_mul(2_u32.saturating_pow(n_excused)).min(LONGEST_COMPANY)
}

impl Claimer {
    /// Starts claimed runs that include suspects: the others at once, then the first suspect in a
    /// trial.
    ///
    /// Returns the other suspects to their positions in the queue, where another worker can claim
    /// them at once.
    pub(crate) async fn start_with_suspects(
        &mut self,
        state: &mut ClaimState,
        tasks: &mut JoinSet<()>,
        token: Uuid,
        claimed: Vec<Claimed>,
    ) {
        let (suspects, others): (Vec<_>, Vec<_>) = claimed.into_iter().partition(is_suspect);
        let slots: Vec<(Claimed, Slot)> = suspects
            .into_iter()
            .map(|run| {
                let slot = self.slot(&run, token);
                (run, slot)
            })
            .collect();
        self.start(tasks, token, others);
        let mut slots = slots.into_iter();
        let Some((run, slot)) = slots.next() else { return };
        self.leave_to_others(state, tasks, slots.collect()).await;
        Box::pin(self.try_alone(state, tasks, run, slot)).await;
        // The returned runs sort before the claim cursors, so only a scan finds them.
        state.scanner.request();
    }

    /// Returns runs to their positions in the queue, and wakes other workers for them.
    async fn leave_to_others(
        &mut self,
        state: &mut ClaimState,
        tasks: &mut JoinSet<()>,
        runs: Vec<(Claimed, Slot)>,
    ) {
        let (fences, lanes): (Vec<Fence>, Vec<Lane>) =
            runs.iter().map(|(run, slot)| (slot.fence, run.lane.clone())).unzip();
        for (run, slot) in runs {
            self.put_back(tasks, run, slot);
        }
        let began = Instant::now();
        while fences.iter().any(|fence| self.executor.in_flight.knows(*fence))
            && began.elapsed() < GIVING_BACK
            && !*self.stop.borrow()
        {
            self.pause(LOOK).await;
        }
        if !lanes.is_empty()
            && let Ok(connection) = state.connection(&self.session).await
            && self.session.with_timeout(wake_sleeping(connection, lanes.iter())).await.is_err()
        {
            // Other workers find the runs at their next poll.
            state.connection = None;
        }
    }

    async fn try_alone(&mut self, state: &mut ClaimState, tasks: &mut JoinSet<()>, run: Claimed, slot: Slot) {
        let fence = slot.fence;
        let _may_try = tokio::select! {
            may_try = self.process.may_try() => may_try,
            () = task::raised(&mut self.stop) => {
                self.put_back(tasks, run, slot);
                return;
            }
        };
        let company = company(run.counters.crashes);
        while !self.process.are_alone_with(fence, company) && !*self.stop.borrow() {
            self.pause(LOOK).await;
        }
        if *self.stop.borrow() || !self.note(state, Some(fence.run_id)).await {
            self.put_back(tasks, run, slot);
            return;
        }
        let length = length(run.earlier);
        tracing::warn!(
            run_id = %fence.run_id, job = run.lane.job, crashes = run.counters.crashes, ?length,
            "processes have died with this run: it is executed with no other suspect beside it"
        );
        let began = Instant::now();
        self.start_one(tasks, run, slot);
        while self.executor.in_flight.knows(fence) && began.elapsed() < length && !*self.stop.borrow() {
            self.pause(LOOK.min(length.saturating_sub(began.elapsed()))).await;
        }
        self.executor.in_flight.clear_of_suspicion(fence);
        self.note(state, None).await;
    }

    /// Waits for the end of any run, for at most `longest`.
    async fn pause(&mut self, longest: Duration) {
        tokio::select! {
            () = self.executor.in_flight.freed.notified() => {}
            () = tokio::time::sleep(longest) => {}
            () = task::raised(&mut self.stop) => {}
        }
    }

    fn put_back(&self, tasks: &mut JoinSet<()>, run: Claimed, slot: Slot) {
        tasks.spawn(Box::pin(std::sync::Arc::clone(&self.executor).put_back(run, slot)));
    }

    /// Records which run is on trial. Returns false if the worker stops first.
    ///
    /// The trial must not start before this record is committed, so a database error is retried.
    async fn note(&mut self, state: &mut ClaimState, run_id: Option<Uuid>) -> bool {
        loop {
            let noted = match state.connection(&self.session).await {
                Ok(connection) => {
                    self.session.with_timeout(worker::on_trial(connection, self.worker_id, run_id)).await
                }
                Err(error) => Err(error),
            };
            let Err(error) = noted else { return true };
            state.connection = None;
            warn_outage!(&state.outage, %error, "a trial waits for the database");
            if *self.stop.borrow() {
                return false;
            }
            tokio::time::sleep(AFTER_ERROR).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n_crashes: u32, longest: u64) -> u64 {
        length(Earlier { n_crashes, longest: Duration::from_secs(longest) }).as_secs()
    }

    #[test]
    fn wait_for_other_runs_doubles_from_fifth_crash_to_cap() {
        assert_eq!([2, 4, 5, 6, 9, i32::MAX].map(|n| company(n).as_secs()), [10, 10, 20, 40, 300, 300]);
    }

    #[test]
    fn trial_lasts_twice_longest_attempt_within_doubling_limit() {
        assert_eq!([seconds(2, 0), seconds(2, 3), seconds(2, 600)], [1, 6, 10]);
        assert_eq!([3, 4, 8].map(|n| seconds(n, 600)), [20, 40, 640]);
        assert_eq!([9, u32::MAX].map(|n| seconds(n, 600)), [1200, 1200]);
        assert_eq!([10, 11, u32::MAX].map(|n| seconds(n, 36_000)), [2560, 3600, 3600]);
    }
}
