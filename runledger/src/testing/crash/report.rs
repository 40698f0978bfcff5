//! The report of a crash test, and its errors.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::ClientError;

/// Counts of the crashes that a workflow survived.
#[derive(Clone, Debug)]
pub struct Crashes {
    pub(super) job: &'static str,
    pub(super) n_crashes: usize,
    pub(super) n_missed: usize,
    pub(super) n_writes: usize,
    pub(super) n_steps: usize,
    pub(super) n_left_out: usize,
    pub(super) seed: u64,
    pub(super) took: Duration,
}

impl Crashes {
    /// How many runs met their fault.
    #[must_use]
    pub fn n_crashes(&self) -> usize {
        self.n_crashes
    }

    /// How many runs ended without meeting their fault, because they took another path. Causes are
    /// races, branches that overtake each other, and step keys that differ in each run. UUIDs in
    /// keys do not count as a difference.
    #[must_use]
    pub fn n_missed(&self) -> usize {
        self.n_missed
    }

    /// How many faults [`at_most`](super::CrashEverywhere::at_most) left out.
    #[must_use]
    pub fn n_left_out(&self) -> usize {
        self.n_left_out
    }
}

impl fmt::Display for Crashes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { job, n_crashes, n_missed, n_writes, n_steps, n_left_out, seed, took } = self;
        write!(
            f,
            "`{job}` survived {n_crashes} crashes, at {n_writes} writes and in {n_steps} steps, in {took:.1?}"
        )?;
        if *n_missed > 0 {
            write!(f, "; {n_missed} were not met")?;
        }
        if *n_left_out > 0 {
            write!(f, "; {n_left_out} were left out (seed {seed})")?;
        }
        Ok(())
    }
}

/// Why a crash test failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CrashError {
    /// The kit could not prepare the runs.
    #[error("the runs of `{job}` could not be prepared")]
    Setup {
        /// The job.
        job: &'static str,
        /// The cause.
        source: ClientError,
    },
    /// The variable `RUNLEDGER_CRASH_SEED` is not a number.
    #[error("`RUNLEDGER_CRASH_SEED` is `{value}`, and a seed is a number from 0 to {}", u64::MAX)]
    Seed {
        /// The value.
        value: String,
    },
    /// The run fails the test without any fault.
    #[error("`{job}` without any fault: {problem}")]
    WithoutFault {
        /// The job.
        job: &'static str,
        /// The check that failed.
        problem: String,
    },
    /// No fault has this text in its name.
    #[error("no fault has `{only}` in its name; there are: {}", .names.join(", "))]
    NoSuchFault {
        /// The text that was searched for.
        only: String,
        /// The names of all faults.
        names: Vec<String>,
    },
    /// No run met a fault, so nothing was tested.
    #[error(
        "`{job}` met no fault, so nothing was tested: {n_missed} runs missed their fault, and `at_most({at_most})` leaves out {n_left_out}; raise `at_most`, \
         or choose other faults with `only`"
    )]
    NothingMet {
        /// The job.
        job: &'static str,
        /// How many runs ended without meeting their fault.
        n_missed: usize,
        /// How many faults [`at_most`](super::CrashEverywhere::at_most) left out.
        n_left_out: usize,
        /// The limit that the test set.
        at_most: usize,
    },
    /// The run did not survive a fault.
    #[error(
        "`{job}`, {fault}: {problem}; repeat it alone: RUNLEDGER_CRASH_SEED={seed} RUNLEDGER_CRASH_ONLY='{}'",
        fault.replace('\'', r"'\''")
    )]
    Broken {
        /// The job.
        job: &'static str,
        /// The fault.
        fault: String,
        /// The check that failed.
        problem: String,
        /// The seed that chose the crashes.
        seed: u64,
    },
}
