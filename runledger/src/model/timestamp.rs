//! An instant of the database's clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The furthest start of a run: 100 years ahead. A later start is a mistake, and a much later one
/// exceeds the database's own range.
pub const FURTHEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// An instant with PostgreSQL's resolution: whole microseconds, here since the Unix epoch.
///
/// Only the database's clock decides leases, schedules and readiness. These values come from that
/// clock and are only compared with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Earlier than every instant that the engine stores.
    pub const DISTANT_PAST: Self = Self(-946_684_800_000_000);

    /// Creates an instant from microseconds since the Unix epoch.
    #[must_use]
    pub const fn from_unix_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// The microseconds since the Unix epoch.
    #[must_use]
    pub const fn unix_micros(self) -> i64 {
        self.0
    }

    /// Adds a duration. Saturates at the end of the range.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add_unsigned(micros(duration)))
    }

    /// Subtracts a duration. Saturates at the end of the range.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub_unsigned(micros(duration)))
    }

    /// Rounds a time up to whole microseconds, so a wait for the instant never ends early.
    #[must_use]
    pub fn not_before(time: SystemTime) -> Self {
        let instant = Self::from(time);
        if SystemTime::from(instant) < time { instant.plus(Duration::from_micros(1)) } else { instant }
    }

    /// The time since `earlier`. Zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        let micros = self.0.saturating_sub(earlier.0);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self(0).plus(after),
            Err(before) => Self(0).minus(before.duration()),
        }
    }
}

impl From<Timestamp> for SystemTime {
    fn from(timestamp: Timestamp) -> Self {
        let distance = Duration::from_micros(timestamp.0.unsigned_abs());
        if timestamp.0 >= 0 { UNIX_EPOCH + distance } else { UNIX_EPOCH - distance }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_time_round_trips_to_microsecond() {
        for time in [UNIX_EPOCH + Duration::from_micros(1_234_567), UNIX_EPOCH - Duration::from_micros(89)] {
            assert_eq!(SystemTime::from(Timestamp::from(time)), time);
        }
        for first_or_last in [i64::MIN, i64::MAX].map(Timestamp::from_unix_micros) {
            assert_eq!(Timestamp::from(SystemTime::from(first_or_last)), first_or_last);
        }
    }

    #[test]
    fn not_before_rounds_up_by_less_than_one_microsecond() {
        for nanos in [0, 1, 999, 1_000, 1_001] {
            for time in [UNIX_EPOCH + Duration::from_nanos(nanos), UNIX_EPOCH - Duration::from_nanos(nanos)] {
                let instant = SystemTime::from(Timestamp::not_before(time));
                let late = instant.duration_since(time).unwrap();
                assert!(late < Duration::from_micros(1), "{time:?}: {late:?}");
            }
        }
    }

    #[test]
    fn time_since_later_instant_is_zero() {
        let early = Timestamp::from_unix_micros(5);
        assert_eq!(early.since(early.plus(Duration::from_secs(1))), Duration::ZERO);
        assert_eq!(early.plus(Duration::from_secs(1)).since(early), Duration::from_secs(1));
    }

    #[test]
    fn furthest_duration_is_century_and_distant_past_precedes_epoch() {
        assert_eq!(FURTHEST.as_secs(), 3_153_600_000);
        assert!(Timestamp::DISTANT_PAST < Timestamp::from(UNIX_EPOCH));
    }

    #[test]
    fn timestamp_arithmetic_saturates_at_range_limits() {
        let second = Duration::from_secs(1);
        assert_eq!(Timestamp::from_unix_micros(5).plus(second).unix_micros(), 1_000_005);
        assert_eq!(Timestamp::from_unix_micros(5).minus(second).unix_micros(), -999_995);
        assert_eq!(Timestamp::from_unix_micros(5).plus(Duration::MAX).unix_micros(), i64::MAX);
        assert_eq!(Timestamp::from_unix_micros(-5).minus(Duration::MAX).unix_micros(), i64::MIN);
    }
}
