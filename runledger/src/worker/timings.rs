//! The intervals of the ownership protocol.

use std::time::Duration;

/// How fast a worker proves that it lives, and how fast others believe that it does not.
///
/// The defaults suit production: a killed process is found within 6 seconds, a paused one within 31. Faster settings find it sooner and make a busy
/// machine look dead sooner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timings {
    /// Between two heartbeats.
    pub(crate) heartbeat: Duration,
    /// Silence after which a worker whose session lock is free counts as dead.
    pub(crate) suspect: Duration,
    /// Silence after which a worker counts as dead whatever its lock says.
    pub(crate) lease: Duration,
    /// Between two looks of an idle worker for runs that no notification announced.
    pub(crate) poll: Duration,
}

impl Timings {
    /// The default: heartbeat 2 s, suspect after 5 s, lease 30 s.
    pub const DEFAULT: Self =
        Self::new(Duration::from_secs(2), Duration::from_secs(5), Duration::from_secs(30));

    /// Heartbeat every 0.5 s, suspect after 1.2 s, lease 4 s: for tests, and for fleets on machines that are never starved.
    pub const FAST: Self =
        Self::new(Duration::from_millis(500), Duration::from_millis(1200), Duration::from_secs(4));

    /// Timings from the heartbeat's interval, the silence that makes a worker suspect, and the lease. Sensible ones are each at least twice the one
    /// before; smaller ones are raised to that.
    #[must_use]
    pub const fn new(heartbeat: Duration, suspect: Duration, lease: Duration) -> Self {
        let suspect = larger(suspect, heartbeat.saturating_mul(2));
        let lease = larger(lease, suspect.saturating_mul(2));
        Self { heartbeat, suspect, lease, poll: Duration::from_secs(5) }
    }

    /// Silence after which a worker is watched: a heartbeat of it is missing. Whoever notices looks again at the very moment of suspicion, and not
    /// only at its own next heartbeat.
    pub(crate) fn overdue(&self) -> Duration {
        self.heartbeat.mul_f64(1.5)
    }

    /// How long a statement of the engine may go without an answer before its connection is given up. With the default
    /// lease and longer ones, this is longer than the server's own limit of 30 s for a statement. The next
    /// reconciliation finds a statement that was carried out all the same.
    pub(crate) fn patience(&self) -> Duration {
        self.lease.min(Duration::from_secs(30)) + Duration::from_secs(5)
    }

    /// How long ago the last acknowledged heartbeat may be when a body starts: most of `suspect`, so that nobody can have buried this worker yet.
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
