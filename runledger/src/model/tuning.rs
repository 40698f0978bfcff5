//! What an operator says of a job, in the place of its own definition.

use std::time::Duration;

use super::backoff::Backoff;
use super::failure::words;
use super::settle::RetryPolicy;

/// What an operator says of a job. What is not said is as the job's own definition has it; what a call says of itself comes before both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a tuning does nothing until it is stored: `db.tune(job, tuning)`"]
pub struct Tuning {
    pub(crate) disabled: Option<String>,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) backoff: Option<(Duration, Duration)>,
}

impl Tuning {
    /// A tuning that says nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// No run of the job is claimed, and none of its attempts is spent; they are queued as ever. The reason is for whoever asks.
    pub fn disabled(mut self, reason: impl Into<String>) -> Self {
        self.disabled = Some(words(&reason.into()));
        self
    }

    /// The job is not disabled any more. What else is said of it stays.
    pub fn enabled(mut self) -> Self {
        self.disabled = None;
        self
    }

    /// So many attempts; at least 1.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts.clamp(1, i32::MAX.unsigned_abs()));
        self
    }

    /// An attempt takes no longer. In whole milliseconds, at least one.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(whole_millis(timeout).max(Duration::from_millis(1)));
        self
    }

    /// Other delays between attempts: the first, and the largest, which is at least that. In whole milliseconds.
    pub fn backoff(mut self, first: Duration, cap: Duration) -> Self {
        let first = whole_millis(first);
        self.backoff = Some((first, whole_millis(cap).max(first)));
        self
    }

    /// Why the job is disabled, if it is.
    #[must_use]
    pub fn why_disabled(&self) -> Option<&str> {
        self.disabled.as_deref()
    }

    /// How a job is tried whose own policy this is.
    pub(crate) fn policy(&self, own: RetryPolicy) -> RetryPolicy {
        RetryPolicy {
            max_attempts: self.max_attempts.unwrap_or(own.max_attempts),
            backoff: self.backoff.map_or(own.backoff, |(first, cap)| Backoff::new(first, cap)),
        }
    }
}

/// As it is stored.
fn whole_millis(duration: Duration) -> Duration {
    const MOST: u64 = i64::MAX.unsigned_abs();
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(MOST).min(MOST))
}
