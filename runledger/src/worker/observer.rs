//! The events that a worker reports to its observers.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use crate::model::run::failure::Failure;

/// The attempt of a run in a call of an [`Observer`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AttemptEvent {
    /// The id of the run.
    pub run_id: Uuid,
    /// The name of its job. It begins with `runledger.` for a graph's own run, which concludes the
    /// graph.
    pub job: String,
    /// The version of the job's code to which the run is pinned.
    pub version: u32,
    /// The tenant of the run. Empty for none.
    pub tenant: String,
    /// The number of the attempt, from 1. An attempt that waited, was released or was lost is not
    /// counted: the next attempt gets the same number.
    pub attempt: u32,
    /// When the attempt began, by the database's clock. It identifies and orders the attempts of
    /// one run.
    pub started_at: SystemTime,
    /// The id under which its worker is registered, as in
    /// [`AttemptInfo::worker_id`](crate::AttemptInfo::worker_id).
    pub worker_id: i64,
    /// The name of its worker.
    pub worker: Arc<str>,
    /// The time from the reply to the claim until this event, measured in this process.
    pub took: Duration,
}

/// Receives the events of a worker's attempts, for metrics, logs and alerts.
///
/// Register an observer with [`App::observe`](crate::App::observe). Methods have empty defaults.
///
/// Every event is committed: if the call reads the database, it finds the run in this state or a
/// later one. For each attempt, the observer receives its start and then its end once, while the
/// process lives. If the run was cancelled before its body began, the observer receives only the
/// end. Tries of steps are not attempts.
///
/// Each observer has its own thread and receives one event at a time, so it may block. It cannot
/// affect runs. The events of one attempt arrive in order. The next attempt of a run may be
/// reported shortly before the end of the previous one; [`started_at`](AttemptEvent::started_at)
/// tells them apart. At most 4,096 events wait for an observer; the worker drops and counts the
/// others.
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

    /// The attempt has failed. The run is queued for another attempt after `delay`.
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

    /// The run is queued for compensation before it fails or is cancelled. The attempt that
    /// compensates its steps also ends the run.
    fn compensating(&self, attempt: &AttemptEvent) {
        let _ = attempt;
    }

    /// The run is suspended until an instant, a signal or the end of another run wakes it.
    fn waiting(&self, attempt: &AttemptEvent) {
        let _ = attempt;
    }

    /// The run continues as new after `delay`, through
    /// [`Wf::continue_as_new`](crate::Wf::continue_as_new) or
    /// [`Context::continue_later`](crate::Context::continue_later).
    fn continued(&self, attempt: &AttemptEvent, delay: Duration) {
        let _ = (attempt, delay);
    }

    /// The attempt stopped because the run was paused. If the run was resumed in between, it is
    /// queued.
    fn paused(&self, attempt: &AttemptEvent) {
        let _ = attempt;
    }

    /// The run is back in its queue. Either the worker shuts down, or a failover lost records that
    /// the attempt relied on.
    fn released(&self, attempt: &AttemptEvent) {
        let _ = attempt;
    }

    /// The run is blocked and waits for a person.
    fn blocked(&self, attempt: &AttemptEvent, failure: &Failure) {
        let _ = (attempt, failure);
    }

    /// The attempt is over, and this worker does not know its outcome. Another worker has or had
    /// the run, or this worker stopped before it could write. Later writes of the attempt have no
    /// effect. Its last write may have been committed without an answer.
    fn superseded(&self, attempt: &AttemptEvent) {
        let _ = attempt;
    }

    /// The worker dropped `n_events` here because the buffer was full. The loss is also logged.
    fn dropped(&self, n_events: u64) {
        let _ = n_events;
    }
}
