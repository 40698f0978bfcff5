//! The state of an attempt, as its executor reads and changes it.

use std::task::Waker;

use tokio::time::Instant;

use super::stop::{PollVerdict, StopReason};
use super::{Attempt, Mode, Progress};
use crate::engine::step::unpolled::check::UnpolledSteps;
use crate::model::replay::history_size::HistorySize;
use crate::model::replay::{Divergence, Replay};
use crate::store::worker::claim::FailedTries;

/// The progress of a rehearsal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    /// Whether the arguments were decoded.
    pub(crate) begun: bool,
    /// Grows with every claim and delivery.
    pub(crate) moves: u64,
    /// Whether the code has replayed the whole history.
    pub(crate) met: bool,
    /// Whether the code awaits a step, recorded or not.
    pub(crate) awaits_steps: bool,
    /// How many clones of the body's own waker the steps hold.
    pub(crate) gated: usize,
}

impl Attempt {
    pub(crate) fn has_ended(&self) -> bool {
        self.progress().has_ended
    }

    /// Registers the waker of the executor. Call it before each poll of the body: that poll sees
    /// everything that has arrived.
    pub(crate) fn polled_by(&self, driver: &Waker) {
        self.driver.register(driver);
        self.progress().has_news = false;
    }

    /// The unpolled steps after a poll that began at this instant.
    pub(crate) fn kept(&self, polled_from: Instant) -> UnpolledSteps {
        self.progress().at_work.unpolled(polled_from)
    }

    /// Decides what to do with a pending workflow that has these unpolled steps.
    pub(crate) fn rest(&self, kept: &UnpolledSteps) -> PollVerdict {
        let progress = self.progress();
        if let Some(stop) = &progress.stop {
            return PollVerdict::Stopped(stop.clone());
        }
        if progress.has_news {
            return PollVerdict::Working;
        }
        let none_gated = progress.gated.is_empty() && progress.early.is_empty();
        let follows = self.mode == Mode::Compensate || progress.replay.is_met();
        let waits = || PollVerdict::Waiting(progress.moves, progress.waits.values().cloned().collect());
        match (progress.active, progress.waits.is_empty(), none_gated) {
            // Code that has diverged must not wait for a new event: the divergence would be found
            // only then.
            (0, false, _) if !follows => PollVerdict::Stalled(progress.moves),
            (0, false, _) => waits(),
            (0, true, false) => PollVerdict::Stalled(progress.moves),
            // The unpolled steps cannot continue before another event makes the code poll them.
            (active, false, _) if follows && kept.count == Some(active) => waits(),
            (_, _, _) => PollVerdict::Working,
        }
    }

    /// Why the attempt must stop, if it must.
    pub(crate) fn stop_reason(&self) -> Option<StopReason> {
        self.progress().stop.clone()
    }

    /// The divergence of a workflow that ends without reaching recorded steps.
    pub(crate) fn unmet(&self) -> Option<Divergence> {
        self.progress().replay.unmet()
    }

    /// The divergence of a workflow whose recorded results wait for a turn that never comes.
    pub(crate) fn stalled(&self) -> Divergence {
        self.progress().replay.stalled()
    }

    /// The divergence of a workflow that calls the engine between its steps.
    pub(crate) fn asks_between_steps(&self) -> Divergence {
        Divergence::BetweenSteps { after: self.progress().replay.last_delivered().map(ToOwned::to_owned) }
    }

    /// The progress of a rehearsal.
    pub(crate) fn scene(&self, own: &Waker) -> Scene {
        let progress = self.progress();
        Scene {
            begun: progress.begun,
            moves: progress.moves,
            met: progress.replay.is_met(),
            awaits_steps: progress.active > 0 || !progress.waits.is_empty() || !progress.gated.is_empty(),
            gated: progress.gated.iter().filter(|waker| waker.will_wake(own)).count(),
        }
    }
}

impl Progress {
    pub(crate) fn new(replay: Replay, failures: Vec<(String, FailedTries)>) -> Self {
        let failures =
            failures.into_iter().map(|(key, tries)| (key, (tries.count, tries.began_at))).collect();
        let size = HistorySize::of(replay.n_bytes());
        Self { replay, size, failures, ..Self::default() }
    }
}
