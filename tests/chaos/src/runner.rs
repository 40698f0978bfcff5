//! Runs scenarios: those that mostly wait run in parallel, the others alone.

use std::io::Write;
use std::num::NonZeroUsize;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::FutureExt;
use runledger_tests::tools::Missing;
use tokio::task::JoinSet;

use crate::arguments::Arguments;
use crate::scenario::{Scenario, Setting, Side};
use crate::site;
use crate::summary::{SoFar, Summary};

/// How many scenarios run in parallel. Each loads about one processor.
fn n_by_side() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// How much longer than its load a scenario may take, for the tail and for starting servers.
const SLACK: Duration = Duration::from_secs(240);

/// Default calls per second: the workers of a scenario can execute this many. A debug build is
/// about ten times slower.
const RATE: u64 = if cfg!(debug_assertions) { 40 } else { 300 };

/// The default number of workers.
const WORKERS: usize = 4;

/// Runs the scenarios, and prints a line per scenario and the final table. Returns false if a
/// scenario was violated, or could not run without `--allow-missing`.
///
/// # Errors
/// Printing failed, or a folder could not be created or removed.
pub async fn run(scenarios: Vec<Scenario>, arguments: &Arguments) -> Result<bool> {
    let seed = arguments.seed();
    say(&format!("{} scenarios, seed {seed}\n{}", scenarios.len(), Summary::header()))?;
    let began = Instant::now();
    let (alone, mut by_side): (Vec<Scenario>, Vec<Scenario>) =
        scenarios.into_iter().partition(|scenario| scenario.side == Side::Alone);
    let mut results = Vec::new();
    let mut under_way = JoinSet::new();
    by_side.sort_by_key(|scenario| scenario.load);
    while !by_side.is_empty() || !under_way.is_empty() {
        while under_way.len() < n_by_side()
            && let Some(scenario) = by_side.pop()
        {
            under_way.spawn(one(scenario, setting(&scenario, arguments, seed)?));
        }
        if let Some(result) = under_way.join_next().await {
            report(&mut results, result?)?;
        }
    }
    for scenario in alone {
        let result = one(scenario, setting(&scenario, arguments, seed)?).await;
        report(&mut results, result)?;
    }
    finish(results, arguments, began.elapsed())
}

fn setting(scenario: &Scenario, arguments: &Arguments, seed: u64) -> Result<Setting> {
    Ok(Setting {
        folder: site::folder(scenario.name)?,
        seed,
        load: arguments.seconds().unwrap_or(scenario.load),
        rate: arguments.rate.unwrap_or(RATE),
        workers: arguments.workers.unwrap_or(WORKERS).max(1),
        so_far: SoFar::default(),
    })
}

async fn one(scenario: Scenario, setting: Setting) -> (Scenario, Summary) {
    let began = Instant::now();
    let limit = setting.load + SLACK;
    let so_far = SoFar::clone(&setting.so_far);
    let running = AssertUnwindSafe((scenario.run)(setting)).catch_unwind();
    let mut summary = match tokio::time::timeout(limit, running).await {
        Ok(Ok(Ok(summary))) => summary,
        Ok(Ok(Err(error))) => match error.downcast_ref::<Missing>() {
            Some(missing) => Summary::not_run(missing.to_string()),
            None => Summary::failed(format!("the scenario could not go on: {error:#}"), &so_far),
        },
        Ok(Err(_)) => Summary::failed("the scenario panicked", &so_far),
        Err(_) => Summary::failed(format!("the scenario had not ended after {limit:?}"), &so_far),
    };
    summary.took = began.elapsed();
    (scenario, summary)
}

fn report(results: &mut Vec<(Scenario, Summary)>, (scenario, summary): (Scenario, Summary)) -> Result<()> {
    say(format!("{}\n{}", summary.line(scenario.name), summary.details()).trim_end())?;
    results.push((scenario, summary));
    Ok(())
}

fn finish(mut results: Vec<(Scenario, Summary)>, arguments: &Arguments, took: Duration) -> Result<bool> {
    results.sort_by_key(|(scenario, _)| scenario.faults.first().copied());
    say(&format!("\n{}", Summary::header()))?;
    for (scenario, summary) in &results {
        say(&summary.line(scenario.name))?;
    }
    let count = |is: fn(&Summary) -> bool| results.iter().filter(|(_, summary)| is(summary)).count();
    let n_violated = count(|summary| !summary.violations.is_empty());
    let n_missing = count(|summary| summary.not_run.is_some());
    say(&format!(
        "{} scenarios in {:.0} s: {n_violated} violated, {n_missing} not run",
        results.len(),
        took.as_secs_f64()
    ))?;
    let held = n_violated == 0 && (n_missing == 0 || arguments.allow_missing);
    if n_violated == 0 && !arguments.keep {
        std::fs::remove_dir_all(site::base())?;
    } else {
        say(&format!("histories and logs are in {}", site::base().display()))?;
    }
    Ok(held)
}

/// Prints a line and flushes it.
///
/// # Errors
/// Standard output is closed.
pub fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use anyhow::bail;
    use runledger::Db;
    use runledger_tests::check::jobs::check_canary;

    use super::*;
    use crate::site::Site;
    use crate::summary::lock;

    async fn gives_up(setting: Setting) -> Result<Summary> {
        let mut site = Site::new(&setting).await?;
        check_canary().enqueue(&Db::connect(site.url()).await?).await?;
        // The runner's own limit bounds this loop.
        while lock(&setting.so_far).n_started == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        site.n_faults = 3;
        site.violations.push("seen before".to_owned());
        bail!("on purpose")
    }

    #[tokio::test]
    async fn aborted_scenario_keeps_counts_and_violations_seen_before() -> Result<()> {
        let scenario = Scenario::new("gives-up", "nothing", &[], |setting| Box::pin(gives_up(setting)));
        let (_, summary) = one(scenario, setting(&scenario, &Arguments::default(), 0)?).await;
        assert_eq!((summary.n_started, summary.n_ended, summary.n_faults), (1, 0, 3));
        assert_eq!(summary.violations, ["the scenario could not go on: on purpose", "seen before"]);
        Ok(std::fs::remove_dir_all(site::base())?)
    }
}
