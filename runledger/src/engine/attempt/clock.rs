//! The clock of an attempt.

#[cfg(feature = "testing")]
use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::definition::provided::Provided;
use crate::model::timestamp::Timestamp;

/// The database's clock at the claim, advanced by the local clock.
///
/// A test may skip time. This clock is then ahead of the database's.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    claimed_at: Timestamp,
    here: Instant,
    #[cfg(feature = "testing")]
    skipped: Option<Arc<crate::engine::test_hooks::Skipped>>,
}

#[cfg(not(feature = "testing"))]
impl Clock {
    pub(crate) fn new(claimed_at: Timestamp, _provided: &Provided) -> Self {
        Self { claimed_at, here: Instant::now() }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.claimed_at.plus(self.here.elapsed())
    }

    /// Converts an instant of this clock to the database's clock.
    pub(crate) fn stored(&self, instant: Timestamp) -> Timestamp {
        instant
    }

    /// Whether sleeps are skipped.
    pub(crate) fn is_skipped(&self) -> bool {
        false
    }
}

#[cfg(feature = "testing")]
impl Clock {
    pub(crate) fn new(claimed_at: Timestamp, provided: &Provided) -> Self {
        let skipped = crate::engine::test_hooks::skipped(provided);
        Self { claimed_at, here: Instant::now(), skipped }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.claimed_at.plus(self.here.elapsed()).plus(self.ahead())
    }

    pub(crate) fn stored(&self, instant: Timestamp) -> Timestamp {
        instant.minus(self.ahead())
    }

    pub(crate) fn is_skipped(&self) -> bool {
        self.skipped.as_ref().is_some_and(|skipped| skipped.by_itself)
    }

    fn ahead(&self) -> Duration {
        self.skipped.as_ref().map_or(Duration::ZERO, |skipped| skipped.so_far())
    }
}
