//! What an operator says of a job, in the place of its own definition.

use std::time::Duration;

use super::backoff::Backoff;
use super::failure::words;
use super::settle::RetryPolicy;

/// What an operator says of a job. What is not said is as the job's own definition has it; what a call says of itself comes before both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a tuning does nothing until it is stored: `db.set_overrides(job, tuning)`"]
pub struct JobOverrides {
    pub(crate) disabled: Option<String>,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) backoff: Option<(Duration, Duration)>,
}

impl JobOverrides {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_job_stays_when_it_is_disabled_and_enabled_again() {
        let tuning = JobOverrides::new().max_attempts(7).disabled("the bank\0 is away");
        assert_eq!(tuning.why_disabled(), Some("the bank\u{fffd} is away"));
        let tuning = tuning.enabled();
        assert_eq!((tuning.why_disabled(), &tuning), (None, &JobOverrides::new().max_attempts(7)));
    }

    #[test]
    fn what_a_tuning_does_not_say_is_as_the_job_has_it() {
        let own = RetryPolicy { max_attempts: 3, backoff: Backoff::DEFAULT };
        assert_eq!(JobOverrides::new().policy(own), own);
        assert_eq!(JobOverrides::new().max_attempts(7).policy(own), RetryPolicy { max_attempts: 7, ..own });
        let (first, cap) = (Duration::from_secs(2), Duration::from_secs(9));
        let backoff = Backoff::new(first, cap);
        assert_eq!(JobOverrides::new().backoff(first, cap).policy(own), RetryPolicy { backoff, ..own });
    }

    #[test]
    fn a_tuning_is_within_what_the_database_stores() {
        let most = Duration::from_millis(i64::MAX.unsigned_abs());
        let (short, long) = (Duration::from_micros(1), Duration::from_micros(2_900));
        assert_eq!(
            [0, u32::MAX].map(|n| JobOverrides::new().max_attempts(n).max_attempts),
            [Some(1), Some(0x7fff_ffff)]
        );
        assert_eq!(
            [short, long, Duration::MAX].map(|timeout| JobOverrides::new().timeout(timeout).timeout),
            [Duration::from_millis(1), Duration::from_millis(2), most].map(Some)
        );
        let two = Duration::from_millis(2);
        assert_eq!(JobOverrides::new().backoff(long, short).backoff, Some((two, two)));
        assert_eq!(JobOverrides::new().backoff(long, Duration::MAX).backoff, Some((two, most)));
    }
}
