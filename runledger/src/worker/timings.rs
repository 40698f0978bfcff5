//! The intervals of the ownership protocol.

use std::time::Duration;

/// How often a worker proves that it is alive, and when other workers declare it dead.
///
/// The defaults suit production: workers detect a killed process within 6 s, and a paused one
/// within 31 s. Shorter settings detect death sooner, but are more likely to declare a busy machine
/// dead.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timings {
    /// The interval between two heartbeats.
    pub(crate) heartbeat: Duration,
    /// The silence after which a worker with a free session lock is dead.
    pub(crate) suspect: Duration,
    /// The silence after which a worker is dead, even if its session lock is held.
    pub(crate) lease: Duration,
    /// The interval at which an idle worker polls for runs without a notification.
    pub(crate) poll: Duration,
}

impl Timings {
    /// The default: heartbeat 2 s, suspect after 5 s, lease 30 s.
    pub const DEFAULT: Self =
        Self::new(Duration::from_secs(2), Duration::from_secs(5), Duration::from_secs(30));

    /// Heartbeat 0.5 s, suspect after 1.2 s, lease 4 s: for tests, and for machines with spare
    /// capacity.
    pub const FAST: Self =
        Self::new(Duration::from_millis(500), Duration::from_millis(1200), Duration::from_secs(4));

    /// Builds timings from the heartbeat interval, the silence that makes a worker suspect, and the
    /// lease.
    ///
    /// `suspect` is at least twice the heartbeat, and `lease` at least twice `suspect`. Smaller
    /// values are raised.
    #[must_use]
    pub const fn new(heartbeat: Duration, suspect: Duration, lease: Duration) -> Self {
        let suspect = larger(suspect, heartbeat.saturating_mul(2));
        let lease = larger(lease, suspect.saturating_mul(2));
        Self { heartbeat, suspect, lease, poll: Duration::from_secs(5) }
    }

    /// The silence that shows a missed heartbeat. A worker that notices it checks again at the
    /// moment of suspicion, not only at its own next heartbeat.
    pub(crate) fn overdue(&self) -> Duration {
        self.heartbeat.mul_f64(1.5)
    }

    /// How long a statement of the engine may go without an answer before the worker closes its
    /// connection.
    ///
    /// With the default lease and longer ones, this is longer than the server's statement limit of
    /// 30 s. If the server executed the statement, the next reconciliation finds its effect.
    pub(crate) fn answer_limit(&self) -> Duration {
        self.lease.min(Duration::from_secs(30)) + Duration::from_secs(5)
    }

    /// The most time since the last acknowledged heartbeat at which a body may start. It is 80 % of
    /// `suspect`, so no other worker can have marked this worker dead yet.
    pub(crate) fn guard(&self) -> Duration {
        self.suspect.mul_f64(0.8)
    }
}

const fn larger(one: Duration, other: Duration) -> Duration {
    if one.as_nanos() > other.as_nanos() { one } else { other }
}

impl Default for Timings {
    fn default() -> Self {
        Self::DEFAULT
    }
}
