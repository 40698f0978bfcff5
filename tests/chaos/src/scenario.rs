//! A scenario: faults that are injected while a fleet works, and what must hold.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use futures::future::BoxFuture;

use crate::dice::Dice;
use crate::summary::{SoFar, Summary};

/// One scripted scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// By which it is called.
    pub name: &'static str,
    /// What it shows, as a sentence that could be false.
    pub shows: &'static str,
    /// The lines of `docs/faults.md` that it covers.
    pub faults: &'static [&'static str],
    /// For how long faults are injected where nothing else is said.
    pub load: Duration,
    /// Whether it may run beside others.
    pub side: Side,
    /// Whether it is one of those that `faults long` runs for two minutes and more.
    pub is_long: bool,
    /// What it does.
    pub run: fn(Setting) -> BoxFuture<'static, Result<Summary>>,
}

/// Whether a scenario may run beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It waits most of the time.
    BySide,
    /// It needs the processor, or its server, for itself.
    Alone,
}

/// What a scenario is given.
#[derive(Clone, Debug)]
pub struct Setting {
    /// A folder of its own, which is kept where something was violated.
    pub folder: PathBuf,
    /// What its random numbers come from.
    pub seed: u64,
    /// For how long to inject faults.
    pub load: Duration,
    /// How many calls a second the client makes.
    pub rate: u64,
    /// How many workers there are where the scenario does not say.
    pub workers: usize,
    /// What there was until now, for a scenario that does not come to its end.
    pub so_far: SoFar,
}

impl Setting {
    /// The random numbers of this scenario.
    #[must_use]
    pub fn dice(&self) -> Dice {
        Dice::new(self.seed)
    }
}

impl Scenario {
    /// A scenario that may run beside others, for twenty seconds where nothing else is said.
    #[must_use]
    pub const fn new(
        name: &'static str,
        shows: &'static str,
        faults: &'static [&'static str],
        run: fn(Setting) -> BoxFuture<'static, Result<Summary>>,
    ) -> Self {
        Self { name, shows, faults, load: Duration::from_secs(20), side: Side::BySide, is_long: false, run }
    }

    /// The same for so many seconds.
    #[must_use]
    pub const fn seconds(self, seconds: u64) -> Self {
        Self { load: Duration::from_secs(seconds), ..self }
    }

    /// The same by itself.
    #[must_use]
    pub const fn alone(self) -> Self {
        Self { side: Side::Alone, ..self }
    }

    /// The same as one of those that `faults long` runs.
    #[must_use]
    pub const fn long(self) -> Self {
        Self { is_long: true, ..self }
    }
}
