//! The delay before the next attempt.

use std::time::Duration;

use crate::model::timestamp::FURTHEST;

/// A delay that starts at `first`, doubles with each failure up to `cap`, and has jitter.
///
/// Jitter adds up to a tenth. So runs that failed together are not retried together, and no run is
/// retried early. The default is `1 s`, capped at `5 min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    cap: Duration,
}

impl Backoff {
    /// The default of a job: `1s..5m`.
    pub const DEFAULT: Self = Self::new(Duration::from_secs(1), Duration::from_secs(300));

    /// Creates a policy from the first and the largest delay. A cap below the first delay counts as
    /// the first delay. A delay over 100 years counts as 100 years.
    #[must_use]
    pub const fn new(first: Duration, cap: Duration) -> Self {
        Self { first: within_reach(first), cap: within_reach(cap) }
    }

    /// The delay after failure number `failures`, counted from 1. `unit_random` is uniform in
    /// `0.0..1.0`.
    #[must_use]
    pub fn delay(&self, failures: u32, unit_random: f64) -> Duration {
        let doublings = failures.saturating_sub(1).min(40);
        let cap = self.cap.max(self.first).as_secs_f64();
        let delay = (self.first.as_secs_f64() * 2f64.powi(doublings.cast_signed())).min(cap);
        Duration::from_secs_f64(delay * (1.0 + JITTER * unit_random)).min(FURTHEST)
    }
}

const fn within_reach(delay: Duration) -> Duration {
    if delay.as_secs() < FURTHEST.as_secs() { delay } else { FURTHEST }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The largest share of a delay that jitter adds.
const JITTER: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_doubles_up_to_cap() {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));
        let delays: Vec<u64> = (1..=6).map(|n| backoff.delay(n, 0.0).as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 8, 10, 10]);
    }

    #[test]
    fn jitter_only_lengthens_delay_by_at_most_one_tenth() {
        let backoff = Backoff::new(Duration::from_secs(100), Duration::from_secs(100));
        assert_eq!(backoff.delay(1, 0.0), Duration::from_secs(100));
        assert!(backoff.delay(1, 0.999_999) < Duration::from_secs(110));
        assert!(backoff.delay(1, 0.999_999) > Duration::from_secs(109));
    }

    #[test]
    fn maximum_delay_is_clamped_to_database_range() {
        assert_eq!(Backoff::new(Duration::MAX, Duration::MAX).delay(1, 0.5), FURTHEST);
    }

    #[test]
    fn delay_after_maximum_failure_count_does_not_overflow() {
        assert!(Backoff::DEFAULT.delay(u32::MAX, 0.99) < Duration::from_secs(331));
    }
}
