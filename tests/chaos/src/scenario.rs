//! A scenario: faults injected into a working fleet, and what must stay true.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use futures::future::BoxFuture;

use crate::dice::Dice;
use crate::summary::{SoFar, Summary};

/// One scripted scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The name on the command line.
    pub name: &'static str,
    /// The property that it shows, as a sentence that could be false.
    pub shows: &'static str,
    /// The lines of `docs/faults.md` that it covers.
    pub faults: &'static [&'static str],
    /// The default duration of the faults.
    pub load: Duration,
    /// Whether it may run beside others.
    pub side: Side,
    /// Whether `faults long` runs it, for two minutes.
    pub is_long: bool,
    /// The scenario's function.
    pub run: fn(Setting) -> BoxFuture<'static, Result<Summary>>,
}

/// Whether a scenario may run beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It mostly waits.
    BySide,
    /// It needs the processor or its server for itself.
    Alone,
}

/// The settings of one scenario.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Its own folder, which the runner keeps after a violation.
    pub folder: PathBuf,
    /// The seed of its random numbers.
    pub seed: u64,
    /// How long to inject faults.
    pub load: Duration,
    /// How many calls per second the client makes.
    pub rate: u64,
    /// The default number of workers.
    pub workers: usize,
    /// The counts so far, for a scenario that does not finish.
    pub so_far: SoFar,
}

impl Setting {
    /// Returns the random numbers of this scenario.
    #[must_use]
    pub fn dice(&self) -> Dice {
        Dice::new(self.seed)
    }
}

impl Scenario {
    /// Creates a scenario that may run beside others and injects faults for 20 s.
    #[must_use]
    pub const fn new(
        name: &'static str,
        shows: &'static str,
        faults: &'static [&'static str],
        run: fn(Setting) -> BoxFuture<'static, Result<Summary>>,
    ) -> Self {
        Self { name, shows, faults, load: Duration::from_secs(20), side: Side::BySide, is_long: false, run }
    }

    /// Sets how many seconds the faults last.
    #[must_use]
    pub const fn seconds(self, seconds: u64) -> Self {
        Self { load: Duration::from_secs(seconds), ..self }
    }

    /// Makes it run alone.
    #[must_use]
    pub const fn alone(self) -> Self {
        Self { side: Side::Alone, ..self }
    }

    /// Adds it to the scenarios of `faults long`.
    #[must_use]
    pub const fn long(self) -> Self {
        Self { is_long: true, ..self }
    }
}
