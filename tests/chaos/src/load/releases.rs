//! Two releases of a program, side by side as in a rolling deploy: work that only one release
//! serves, and work that can move to the other.

use anyhow::{Result, bail};
use runledger::__private::Definition;
use runledger::jobs;

/// The duration of the middle step, in milliseconds: longer than a release's worker drains.
const MILLIS: u64 = 400;

/// One of the two releases. Both serve every other job of the load too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The old release.
    Former,
    /// The new release.
    Next,
}

impl Release {
    /// Finds a release by its name on a worker's command line.
    ///
    /// # Errors
    /// There is no release of this name.
    pub fn named(name: &str) -> Result<Self> {
        match name {
            "former" => Ok(Self::Former),
            "next" => Ok(Self::Next),
            other => bail!("there is no release `{other}`"),
        }
    }

    /// Returns the options of its workers: a drain of 100 ms, after which they hand back their
    /// runs, and default timings.
    #[must_use]
    pub const fn options(self) -> &'static [&'static str] {
        match self {
            Self::Former => &["--timings", "default", "--drain-millis", "100", "--release", "former"],
            Self::Next => &["--timings", "default", "--drain-millis", "100", "--release", "next"],
        }
    }

    /// Returns every job that its workers serve.
    #[must_use]
    pub fn jobs(self) -> Vec<&'static Definition> {
        let mut jobs = super::jobs::all();
        match self {
            Self::Former => jobs.extend(jobs![former::parcel, former::letter]),
            Self::Next => jobs.extend(jobs![next::parcel, next::letter, next::telegram]),
        }
        jobs
    }
}

/// The jobs of the old release only.
pub mod former {
    use runledger::prelude::*;
    use runledger_tests::check::jobs::check_quick;
    use runledger_tests::check::place::Place;

    use super::super::jobs::chaos_slow;
    use super::MILLIS;

    /// A workflow in version 1. Returns its version.
    #[workflow(name = "chaos.parcel", queue = "checks", max_attempts = 1)]
    pub async fn parcel(wf: &Wf, place: Place) -> Result<u32> {
        wf.run(check_quick(place.clone()).key("pack")).await?;
        wf.run(chaos_slow(place.clone(), MILLIS)).await?;
        wf.run(check_quick(place).key("send")).await?;
        Ok(1)
    }

    /// A workflow that the new release changes without changing its steps. Returns its version.
    #[workflow(name = "chaos.letter", queue = "checks", max_attempts = 1)]
    pub async fn letter(wf: &Wf, place: Place) -> Result<u32> {
        wf.run(check_quick(place.clone()).key("stamp")).await?;
        wf.run(chaos_slow(place.clone(), MILLIS)).await?;
        wf.run(check_quick(place).key("post")).await?;
        Ok(1)
    }
}

/// The jobs of the new release only.
pub mod next {
    use runledger::prelude::*;
    use runledger_tests::check::jobs::check_quick;
    use runledger_tests::check::place::Place;

    use super::super::jobs::chaos_slow;
    use super::MILLIS;

    /// It has other steps, so runs of version 1 end in the old release.
    #[workflow(name = "chaos.parcel", version = 2, queue = "checks", max_attempts = 1)]
    pub async fn parcel(wf: &Wf, place: Place) -> Result<u32> {
        wf.run(check_quick(place.clone()).key("weigh")).await?;
        wf.run(chaos_slow(place.clone(), MILLIS)).await?;
        wf.run(check_quick(place).key("hand-over")).await?;
        Ok(2)
    }

    /// It has the steps of version 1, so runs of version 1 can continue here.
    #[workflow(name = "chaos.letter", version = 2, accepts = "1..", queue = "checks", max_attempts = 1)]
    pub async fn letter(wf: &Wf, place: Place) -> Result<u32> {
        wf.run(check_quick(place.clone()).key("stamp")).await?;
        wf.run(chaos_slow(place.clone(), MILLIS)).await?;
        wf.run(check_quick(place).key("post")).await?;
        Ok(2)
    }

    /// A workflow that the old release does not have.
    #[workflow(name = "chaos.telegram", queue = "checks", max_attempts = 1)]
    pub async fn telegram(wf: &Wf, place: Place) -> Result<u32> {
        wf.run(check_quick(place)).await?;
        Ok(2)
    }
}
