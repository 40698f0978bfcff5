//! Overrides: settings of an operator that replace parts of a job's definition.

use std::time::Duration;

use crate::model::run::backoff::Backoff;
use crate::model::run::failure::words;
use crate::model::run::settle::RetryPolicy;

/// The settings that an operator overrides for a job.
///
/// A setting without an override comes from the job's definition. Options of a call take precedence
/// over both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "overrides do nothing until they are stored: `db.set_overrides(job, overrides)`"]
pub struct JobOverrides {
    pub(crate) disabled: Option<String>,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) backoff: Option<(Duration, Duration)>,
}

impl JobOverrides {
    /// Creates overrides without any setting.
    pub fn new() -> Self {
        Self::default()
    }

    /// Disables the job: workers claim none of its runs. Runs can still be enqueued, and they lose
    /// no attempts. Operators can read the reason.
    pub fn disabled(mut self, reason: impl Into<String>) -> Self {
        self.disabled = Some(words(&reason.into()));
        self
    }

    /// Enables the job again. Other overrides stay.
    pub fn enabled(mut self) -> Self {
        self.disabled = None;
        self
    }

    /// Overrides the maximum number of attempts, at least 1.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts.clamp(1, i32::MAX.unsigned_abs()));
        self
    }

    /// Overrides the timeout of an attempt, in whole milliseconds, at least 1 ms.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(whole_millis(timeout).max(Duration::from_millis(1)));
        self
    }

    /// Overrides the first and the largest retry delay, in whole milliseconds. A cap below the
    /// first delay counts as the first delay.
    pub fn backoff(mut self, first: Duration, cap: Duration) -> Self {
        let first = whole_millis(first);
        self.backoff = Some((first, whole_millis(cap).max(first)));
        self
    }

    /// The reason why the job is disabled, if it is.
    #[must_use]
    pub fn why_disabled(&self) -> Option<&str> {
        self.disabled.as_deref()
    }

    /// The retry policy of a job whose own policy is `own`.
    pub(crate) fn policy(&self, own: RetryPolicy) -> RetryPolicy {
        RetryPolicy {
            max_attempts: self.max_attempts.unwrap_or(own.max_attempts),
            backoff: self.backoff.map_or(own.backoff, |(first, cap)| Backoff::new(first, cap)),
        }
    }
}

/// Rounds to the stored resolution.
fn whole_millis(duration: Duration) -> Duration {
    const MOST: u64 = i64::MAX.unsigned_abs();
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(MOST).min(MOST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_overrides_survive_disabling_and_enabling_job() {
        let overrides = JobOverrides::new().max_attempts(7).disabled("the bank\0 is away");
        assert_eq!(overrides.why_disabled(), Some("the bank\u{fffd} is away"));
        let overrides = overrides.enabled();
        assert_eq!((overrides.why_disabled(), &overrides), (None, &JobOverrides::new().max_attempts(7)));
    }

    #[test]
    fn retry_policy_keeps_own_value_where_override_is_unset() {
        let own = RetryPolicy { max_attempts: 3, backoff: Backoff::DEFAULT };
        assert_eq!(JobOverrides::new().policy(own), own);
        assert_eq!(JobOverrides::new().max_attempts(7).policy(own), RetryPolicy { max_attempts: 7, ..own });
        let (first, cap) = (Duration::from_secs(2), Duration::from_secs(9));
        let backoff = Backoff::new(first, cap);
        assert_eq!(JobOverrides::new().backoff(first, cap).policy(own), RetryPolicy { backoff, ..own });
    }

    #[test]
    fn override_values_are_clamped_to_database_range() {
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
