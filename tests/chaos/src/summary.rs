//! The result of a scenario, and the table of all results.

use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use runledger_tests::check::Violations;

/// The result of a scenario.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Enqueued runs, including children.
    pub n_started: usize,
    /// Ended runs.
    pub n_ended: usize,
    /// Recorded steps.
    pub n_steps: usize,
    /// Injected faults.
    pub n_faults: usize,
    /// Runs that continued in another attempt, after their worker crashed or a claim's answer was
    /// lost.
    pub n_recoveries: usize,
    /// Bodies that started after another attempt had claimed their run. Only a pause between the
    /// guard and the body can cause this.
    pub n_stale_starts: usize,
    /// Bodies that ended after another attempt had claimed their run. Their results were refused.
    pub n_fenced: usize,
    /// Contradictions of a guarantee.
    pub violations: Violations,
    /// Other remarks for the reader.
    pub notes: Vec<String>,
    /// Why the scenario could not run, and what to install.
    pub not_run: Option<String>,
    /// The duration.
    pub took: Duration,
}

/// The results so far, which several tasks read and write.
pub type SoFar = Arc<Mutex<Summary>>;

/// Locks the results so far.
pub fn lock(so_far: &SoFar) -> MutexGuard<'_, Summary> {
    so_far.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Summary {
    /// The summary of a scenario that needs something this machine lacks, with the way to install
    /// it.
    #[must_use]
    pub fn not_run(why: impl Into<String>) -> Self {
        Self { not_run: Some(why.into()), ..Self::default() }
    }

    /// The summary of a scenario that could not finish, with its results so far.
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

    /// Returns the names of the columns.
    #[must_use]
    pub fn header() -> String {
        format!(
            "{:<28} {:>6} {:>6} {:>7} {:>7} {:>10} {:>6} {:>6} {:>6}  verdict",
            "scenario", "runs", "ended", "steps", "faults", "recoveries", "stale", "fenced", "s"
        )
    }

    /// Returns one line of the table.
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

    /// Returns the sentences below the line, indented.
    #[must_use]
    pub fn details(&self) -> String {
        /// More violations add no information.
        const MOST: usize = 20;
        let mut text = String::new();
        for sentence in self.not_run.iter().chain(self.violations.iter().take(MOST)).chain(&self.notes) {
            // Writing into a `String` does not fail.
            let _ = writeln!(text, "    {sentence}");
        }
        if let Some(n_more) = self.violations.len().checked_sub(MOST).filter(|n| *n > 0) {
            let _ = writeln!(text, "    … and {n_more} more");
        }
        text
    }
}
