//! How fast the workers of a scenario detect each other's failures, and so how long a run may make
//! no progress.

use std::time::Duration;

use anyhow::{Result, bail};
use runledger::Timings;

/// The slowest poll of a worker.
const POLL: Duration = Duration::from_secs(5);

/// How much longer than a lease a worker waits for a statement's answer.
const ANSWER: Duration = Duration::from_secs(5);

/// No fault of any scenario lasts longer.
const LONGEST_FAULT: Duration = Duration::from_secs(10);

/// The intervals of a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pace {
    lease: Duration,
    suspect: Duration,
    heartbeat: Duration,
}

impl Pace {
    /// The pace of [`Timings::FAST`].
    pub const FAST: Self = Self::new(500, 1200, 4000);

    /// The pace of [`Timings::DEFAULT`].
    pub const DEFAULT: Self = Self::new(2000, 5000, 30_000);

    const fn new(heartbeat: u64, suspect: u64, lease: u64) -> Self {
        Self {
            lease: Duration::from_millis(lease),
            suspect: Duration::from_millis(suspect),
            heartbeat: Duration::from_millis(heartbeat),
        }
    }

    /// Parses `fast` or `default`.
    ///
    /// # Errors
    /// The name is neither.
    pub fn named(name: &str) -> Result<Self> {
        match name {
            "fast" => Ok(Self::FAST),
            "default" => Ok(Self::DEFAULT),
            other => bail!("there is no pace `{other}`"),
        }
    }

    /// Returns the pace of workers with these [options](crate::load::worker::Options).
    #[must_use]
    pub fn of(options: &[&str]) -> Self {
        if options.windows(2).any(|pair| pair == ["--timings", "default"]) {
            Self::DEFAULT
        } else {
            Self::FAST
        }
    }

    /// Returns the engine's type for it.
    #[must_use]
    pub const fn timings(self) -> Timings {
        Timings::new(self.heartbeat, self.suspect, self.lease)
    }

    /// Returns how long a process that resumes after a pause may not know that it lost its leases.
    /// Its next heartbeat tells it. If the connection is gone, another heartbeat follows within a
    /// lease.
    #[must_use]
    pub fn recovery(self) -> Duration {
        self.lease + self.heartbeat
    }

    /// Returns how long a run may make no progress under faults: the fault lasts, the worker waits
    /// for an answer that never comes, it is found dead, and its successor polls.
    #[must_use]
    pub fn bound(self) -> Duration {
        LONGEST_FAULT + (self.lease + ANSWER) + (self.lease + self.heartbeat) + POLL
    }
}

#[test]
fn paces_match_engine_timings_and_arguments() {
    assert_eq!(Pace::FAST.timings(), Timings::FAST);
    assert_eq!(Pace::DEFAULT.timings(), Timings::DEFAULT);
    assert_eq!(Pace::of(crate::scene::PATIENT), Pace::DEFAULT);
    assert_eq!(Pace::of(&["--drain-millis", "300"]), Pace::FAST);
}
