//! What the observers of a worker are told of its attempts.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use crate::model::failure::Failure;

/// An attempt of a run, as an [`Observer`] is told of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AttemptEvent {
    /// The run.
    pub run_id: Uuid,
    /// The name of its job. Of a graph's own run, which concludes the graph, it begins with `runledger.`.
    pub job: String,
    /// The version of its job's code that it is pinned to.
    pub version: u32,
    /// The tenant that it belongs to; empty for none.
    pub tenant: String,
    /// Which attempt of the run it is, from 1. One that waited, was handed back or lost is not counted, so the next has its number again.
    pub attempt: u32,
    /// When it began, by the database's clock: what tells it from other attempts of its run, and says which came first.
    pub started_at: SystemTime,
    /// The number under which its worker is registered: that of [`AttemptInfo::worker_id`](crate::AttemptInfo::worker_id).
    pub worker_id: i64,
    /// The name of its worker.
    pub worker: Arc<str>,
    /// For how long this process has had it in hand, since the reply to the claim, as far as what is told.
    pub took: Duration,
}

/// Is told what becomes of the attempts of a worker, for metrics, logs and alarms: see [`App::observe`](crate::App::observe). A method that is not written does nothing.
///
/// Everything it is told of is committed: a look at the database in the call finds the run there, or further. Of each attempt it is told that it has started, and then once how it
/// has ended, as far as the process lives; of one whose body was not to begin, since the run was cancelled before, its end alone. Tries of steps are no attempts of the run.
///
/// It is told by a thread of its own, one event after the other, so it may block; what it does changes nothing for the runs. The events of one attempt come in their order; the
/// next attempt of its run may be told of a moment before the end of that one, which [`started_at`](AttemptEvent::started_at) tells. Whatever it cannot take in
/// time is dropped and counted: at most 4,096 events wait for it.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use std::time::Duration;
///
/// use runledger::{Failure, AttemptEvent, Observer};
///
/// #[derive(Default)]
/// struct Counts {
///     completed: AtomicU64,
/// }
///
/// impl Observer for Counts {
///     fn completed(&self, attempt: &AttemptEvent) {
///         self.completed.fetch_add(1, Ordering::Relaxed);
///         println!("{} in {:?}", attempt.job, attempt.took);
///     }
///
///     fn retried(&self, attempt: &AttemptEvent, failure: &Failure, delay: Duration) {
///         eprintln!("{}: attempt {} failed, another in {delay:?}: {failure}", attempt.job, attempt.attempt);
///     }
/// }
/// ```
pub trait Observer: Send + Sync + 'static {
    /// The run is claimed, and its body begins. A run that waited begins another attempt.
    fn started(&self, attempt: &AttemptEvent) {
        let _ = attempt;
    }

    /// The run has completed.
    fn completed(&self, attempt: &AttemptEvent) {
        let _ = attempt;
    }

    /// The attempt has failed, and the run is queued again for another after this delay.
    fn retried(&self, attempt: &AttemptEvent, failure: &Failure, delay: Duration) {
        let _ = (attempt, failure, delay);
    }

    /// The run has failed for good.
    fn failed(&self, attempt: &AttemptEvent, failure: &Failure) {
        let _ = (attempt, failure);
    }

    /// The run is cancelled.
    fn cancelled(&self, attempt: &AttemptEvent) {
        let _ = attempt;
    }

    /// The run is to fail or to be cancelled, and is queued again for what its steps did to be taken back; the attempt that has done so ends it.
    fn undoing(&self, attempt: &AttemptEvent) {
        let _ = attempt;
    }

    /// The run has left the worker until an instant, a signal or the end of another run wakes it.
    fn waiting(&self, attempt: &AttemptEvent) {
        let _ = attempt;
    }

    /// The run begins anew after this delay: by [`Wf::continue_as_new`](crate::Wf::continue_as_new) or [`Context::continue_later`](crate::Context::continue_later).
    fn continued(&self, attempt: &AttemptEvent, delay: Duration) {
        let _ = (attempt, delay);
    }

    /// The attempt has stopped since somebody has paused the run. Where that was taken back meanwhile the run is queued.
    fn paused(&self, attempt: &AttemptEvent) {
        let _ = attempt;
    }

    /// The run is handed back to its queue: the worker shuts down, or what the attempt stands on was lost in a failover.
    fn released(&self, attempt: &AttemptEvent) {
        let _ = attempt;
    }

    /// The run is blocked, and waits for a person.
    fn blocked(&self, attempt: &AttemptEvent, failure: &Failure) {
        let _ = (attempt, failure);
    }

    /// The attempt is over, and its end is not known here: another worker has the run or had it since, or this one was stopped before anything could be written. Nothing that it
    /// would have written later counts. It may be that its last write took place, and the answer was lost.
    fn lost(&self, attempt: &AttemptEvent) {
        let _ = attempt;
    }

    /// So many events were dropped at this place, since more had come than it could take. It is logged as well.
    fn missed(&self, n_events: u64) {
        let _ = n_events;
    }
}
