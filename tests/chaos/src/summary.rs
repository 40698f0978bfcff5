//! What came of a scenario, and the table of all.

use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use runledger_tests::check::Violations;

/// What came of a scenario.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Runs that were enqueued, and children.
    pub n_started: usize,
    /// Runs that ended.
    pub n_ended: usize,
    /// Recorded steps.
    pub n_steps: usize,
    /// Faults that were injected.
    pub n_faults: usize,
    /// Runs that went on in another attempt: after their worker had crashed, or after a claim that it had not heard of.
    pub n_recoveries: usize,
    /// Bodies that began after another attempt had taken their run: only pauses between the guard and the body lead there.
    pub n_stale_starts: usize,
    /// Bodies that ended after another attempt had taken their run: what they gave was refused.
    pub n_fenced: usize,
    /// What contradicts a guarantee.
    pub violations: Violations,
    /// What a person should know besides.
    pub notes: Vec<String>,
    /// Why it could not be run, and what to install, if it could not.
    pub not_run: Option<String>,
    /// How long it took.
    pub took: Duration,
}

/// What there was until now, for others to read.
pub type SoFar = Arc<Mutex<Summary>>;

/// A summary that others write too.
pub fn lock(so_far: &SoFar) -> MutexGuard<'_, Summary> {
    so_far.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Summary {
    /// Of a scenario that needs something this machine lacks: why, and how to install it.
    #[must_use]
    pub fn not_run(why: impl Into<String>) -> Self {
        Self { not_run: Some(why.into()), ..Self::default() }
    }

    /// Of a scenario that could not go on, with what there was until then.
    #[must_use]
    pub fn failed(why: impl Into<String>, so_far: &SoFar) -> Self {
        let mut summary = std::mem::take(&mut *lock(so_far));
        summary.violations.insert(0, why.into());
        summary
    }

    fn verdict(&self) -> String {
        match (&self.not_run, self.violations.len()) {
            (Some(_), _) => "NOT RUN".to_owned(),
            (None, 0) => "held".to_owned(),
            (None, n) => format!("{n} VIOLATIONS"),
        }
    }

    /// The names of the columns.
    #[must_use]
    pub fn header() -> String {
        format!(
            "{:<28} {:>6} {:>6} {:>7} {:>7} {:>10} {:>6} {:>6} {:>6}  verdict",
            "scenario", "runs", "ended", "steps", "faults", "recoveries", "stale", "fenced", "s"
        )
    }

    /// One line of the table.
    #[must_use]
    pub fn line(&self, name: &str) -> String {
        format!(
            "{name:<28} {:>6} {:>6} {:>7} {:>7} {:>10} {:>6} {:>6} {:>6.0}  {}",
            self.n_started,
            self.n_ended,
            self.n_steps,
            self.n_faults,
            self.n_recoveries,
            self.n_stale_starts,
            self.n_fenced,
            self.took.as_secs_f64(),
            self.verdict()
        )
    }

    /// The sentences that belong to the line, indented.
    #[must_use]
    pub fn details(&self) -> String {
        /// More of one kind say nothing more.
        const MOST: usize = 20;
        let mut text = String::new();
        for sentence in self.not_run.iter().chain(self.violations.iter().take(MOST)).chain(&self.notes) {
            // Writing into a text does not fail.
            let _ = writeln!(text, "    {sentence}");
        }
        if let Some(n_more) = self.violations.len().checked_sub(MOST).filter(|n| *n > 0) {
            let _ = writeln!(text, "    … and {n_more} more");
        }
        text
    }
}
