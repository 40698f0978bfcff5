//! Logs repeated failures: the first at once, later ones at growing intervals with a count, then
//! the recovery.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The pause after the first line. It doubles with each further line, up to [`LONGEST`].
const FIRST: Duration = Duration::from_secs(5);

/// The longest pause between two lines.
const LONGEST: Duration = Duration::from_secs(300);

/// A pause this long between two failures separates outages, because not every caller reports
/// success.
const QUIET: Duration = Duration::from_secs(600);

/// The failures of one loop, or of one operation that many runs share.
#[derive(Debug, Default)]
pub(crate) struct Outage(Mutex<Option<Failing>>);

#[derive(Debug)]
struct Failing {
    since: Instant,
    last_at: Instant,
    n_failures: u64,
    n_suppressed: u64,
    pause: Duration,
    next_line_at: Instant,
}

/// A failure to log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// The number of failures since the last line that were not logged. `None` instead of 0 omits
    /// the field from the event.
    pub(crate) n_suppressed: Option<u64>,
}

/// The end of an outage that was logged.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Recovery {
    pub(crate) n_failures: u64,
    pub(crate) lasted: Duration,
}

/// Logs a failure as a warning if its outage has a line for it, with the number of failures since
/// the last line. `static` gives each call site an outage of its own.
macro_rules! warn_outage {
    (static, $($event:tt)+) => {{
        static OUTAGE: $crate::connection::outage::Outage = $crate::connection::outage::Outage::new();
        warn_outage!(&OUTAGE, $($event)+);
    }};
    ($outage:expr, $($event:tt)+) => {
        if let Some($crate::connection::outage::Line { n_suppressed }) = $outage.failed() {
            tracing::warn!(n_suppressed, $($event)+);
        }
    };
}
pub(crate) use warn_outage;

impl Outage {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Records a failure. Returns a line if it should be logged.
    pub(crate) fn failed(&self) -> Option<Line> {
        let (mut failing, now) = (self.failing(), Instant::now());
        let new = || Failing {
            since: now,
            last_at: now,
            n_failures: 0,
            n_suppressed: 0,
            pause: FIRST,
            next_line_at: now,
        };
        let mut outage = failing.take().filter(|outage| outage.last_at + QUIET > now).unwrap_or_else(new);
        outage.n_failures += 1;
        outage.last_at = now;
        let line = if now >= outage.next_line_at {
            outage.next_line_at = now + outage.pause;
            outage.pause = (outage.pause * 2).min(LONGEST);
            Some(Line { n_suppressed: Some(std::mem::take(&mut outage.n_suppressed)).filter(|n| *n > 0) })
        } else {
            outage.n_suppressed += 1;
            None
        };
        *failing = Some(outage);
        line
    }

    /// Records a success. Returns the outage that it ends, if any.
    pub(crate) fn succeeded(&self) -> Option<Recovery> {
        let outage = self.failing().take()?;
        Some(Recovery { n_failures: outage.n_failures, lasted: outage.since.elapsed() })
    }

    fn failing(&self) -> MutexGuard<'_, Option<Failing>> {
        // No code panics while it holds this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn repeated_failure_is_logged_at_growing_intervals_with_count() {
        let outage = Outage::new();
        assert_eq!(outage.failed(), Some(Line { n_suppressed: None }));
        let mut lines = Vec::new();
        for fifth in 1..=5 * 300_u64 {
            tokio::time::advance(Duration::from_millis(200)).await;
            if let Some(line) = outage.failed() {
                lines.push((fifth / 5, line.n_suppressed));
            }
        }
        assert_eq!(
            lines,
            [(5, Some(24)), (15, Some(49)), (35, Some(99)), (75, Some(199)), (155, Some(399))],
            "seconds after the first line, and failures without one"
        );
        let recovery = outage.succeeded().unwrap();
        assert_eq!((recovery.n_failures, recovery.lasted), (1501, Duration::from_secs(300)));
        assert_eq!(outage.succeeded(), None);
        assert_eq!(outage.failed(), Some(Line { n_suppressed: None }), "the next outage begins anew");
    }

    #[tokio::test(start_paused = true)]
    async fn failure_after_long_quiet_time_is_logged_at_once() {
        let outage = Outage::new();
        assert!(outage.failed().is_some());
        assert!(outage.failed().is_none());
        tokio::time::advance(QUIET).await;
        assert_eq!(outage.failed(), Some(Line { n_suppressed: None }));
    }
}
