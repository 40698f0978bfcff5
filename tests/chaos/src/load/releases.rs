//! Two releases of a program, as a rolling deploy has them side by side: what only one of them can serve, and what goes on in the other.

use anyhow::{Result, bail};
use runledger::__private::Definition;
use runledger::jobs;

/// How long the middle step takes of what is asked of both: longer than a worker of a release waits when it is asked to stop.
const MILLIS: u64 = 400;

/// One of the releases. Both serve all that every other worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The one that is replaced.
    Former,
    /// The one that comes.
    Next,
}

impl Release {
    /// The one of this name on the command line of a worker.
    ///
    /// # Errors
    /// Where there is none.
    pub fn named(name: &str) -> Result<Self> {
        match name {
            "former" => Ok(Self::Former),
            "next" => Ok(Self::Next),
            other => bail!("there is no release `{other}`"),
        }
    }

    /// The options of its workers. They hand back what does not end at once when they are asked to stop, and are patient with one another.
    #[must_use]
    pub const fn options(self) -> &'static [&'static str] {
        match self {
            Self::Former => &["--timings", "default", "--drain-millis", "100", "--release", "former"],
            Self::Next => &["--timings", "default", "--drain-millis", "100", "--release", "next"],
        }
    }

    /// Everything that its workers serve.
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

/// What the former release has.
pub mod former {
    use runledger::prelude::*;
    use runledger_tests::check::jobs::check_quick;
    use runledger_tests::check::place::Place;

    use super::super::jobs::chaos_slow;
    use super::MILLIS;

    /// The first version of a workflow; gives its number.
    #[workflow(name = "chaos.parcel", queue = "checks", max_attempts = 1)]
    pub async fn parcel(wf: &Wf, place: Place) -> Result<u32> {
        wf.run(check_quick(place.clone()).key("pack")).await?;
        wf.run(chaos_slow(place.clone(), MILLIS)).await?;
        wf.run(check_quick(place).key("send")).await?;
        Ok(1)
    }

    /// One that the next release changes without another step; gives the number of its version.
    #[workflow(name = "chaos.letter", queue = "checks", max_attempts = 1)]
    pub async fn letter(wf: &Wf, place: Place) -> Result<u32> {
        wf.run(check_quick(place.clone()).key("stamp")).await?;
        wf.run(chaos_slow(place.clone(), MILLIS)).await?;
        wf.run(check_quick(place).key("post")).await?;
        Ok(1)
    }
}

/// What the next release has.
pub mod next {
    use runledger::prelude::*;
    use runledger_tests::check::jobs::check_quick;
    use runledger_tests::check::place::Place;

    use super::super::jobs::chaos_slow;
    use super::MILLIS;

    /// Its steps are others: runs of the first version end in the former release.
    #[workflow(name = "chaos.parcel", version = 2, queue = "checks", max_attempts = 1)]
    pub async fn parcel(wf: &Wf, place: Place) -> Result<u32> {
        wf.run(check_quick(place.clone()).key("weigh")).await?;
        wf.run(chaos_slow(place.clone(), MILLIS)).await?;
        wf.run(check_quick(place).key("hand-over")).await?;
        Ok(2)
    }

    /// Its steps are those of the first version, whose runs go on here.
    #[workflow(name = "chaos.letter", version = 2, accepts = "1..", queue = "checks", max_attempts = 1)]
    pub async fn letter(wf: &Wf, place: Place) -> Result<u32> {
        wf.run(check_quick(place.clone()).key("stamp")).await?;
        wf.run(chaos_slow(place.clone(), MILLIS)).await?;
        wf.run(check_quick(place).key("post")).await?;
        Ok(2)
    }

    /// One that the former release does not have.
    #[workflow(name = "chaos.telegram", queue = "checks", max_attempts = 1)]
    pub async fn telegram(wf: &Wf, place: Place) -> Result<u32> {
        wf.run(check_quick(place)).await?;
        Ok(2)
    }
}
