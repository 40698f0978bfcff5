//! Shows that the checks of the guarantees can fail. Builds the workspace with one deliberate
//! defect at a time and expects the tests for that defect to fail.
//!
//! The defects go into a copy of the sources in `<target>/mutants`. The copy has its own target
//! folder, so a second call is fast. Every replacement must match exactly once, and the tests must
//! pass in the original sources; otherwise the result means nothing. A mutant is caught if an
//! assertion or an `unwrap` panics, or if a wait in the test reaches its limit. A test that returns
//! an error, or that this program has to kill, shows nothing.

mod catalogue;
mod mutant;
mod requests;
mod seed;
mod workspace;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use catalogue::MUTANTS;
use clap::{Parser, Subcommand};
use mutant::Mutant;
use requests::REQUESTS;
use workspace::{Tested, Workspace};

/// Builds the workspace with one deliberate defect at a time, and expects its tests to fail
#[derive(Parser)]
#[command(name = "mutants")]
struct Cli {
    /// Without a command, run all mutants
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Name the mutants and their tests
    List,
    /// Run these mutants
    Run {
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Run a number of mutants; a text, such as a commit hash, chooses them
    Some {
        number: usize,
        #[arg(value_name = "TEXT")]
        chosen_by: String,
    },
}

fn main() -> Result<ExitCode> {
    let chosen = match Cli::parse().command {
        None => every().collect(),
        Some(Command::List) => return list(),
        Some(Command::Run { names }) => named(&names)?,
        Some(Command::Some { number, chosen_by }) => some(number, &chosen_by),
    };
    let origin = Workspace::origin()?;
    chosen.iter().try_for_each(|mutant| origin.check(mutant))?;
    let mut tests: Vec<&'static str> = chosen.iter().flat_map(|mutant| mutant.tests).copied().collect();
    tests.sort_unstable();
    tests.dedup();
    say(&format!("{} mutants; first, their {} tests without them", chosen.len(), tests.len()))?;
    origin.build(&tests)?;
    for test in tests {
        match origin.test(test)? {
            Tested::Green => {}
            Tested::Red(why) | Tested::Broken(why) => {
                bail!("`{test}` fails without any mutant, so it shows nothing: {why}")
            }
            Tested::Hung(limit) => bail!("`{test}` has not ended after {limit:?} without any mutant"),
        }
    }
    let copy = origin.copy()?;
    let mut n_survivors = 0;
    for mutant in chosen {
        n_survivors += usize::from(!is_caught(&copy, mutant)?);
    }
    say(&format!("{n_survivors} were not caught"))?;
    Ok(if n_survivors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn every() -> impl Iterator<Item = &'static Mutant> {
    MUTANTS.iter().chain(REQUESTS)
}

/// Prints every mutant and the tests that must find it.
fn list() -> Result<ExitCode> {
    for mutant in every() {
        say(&format!("{:<28} {}", mutant.name, mutant.tests.join(", ")))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn named(names: &[String]) -> Result<Vec<&'static Mutant>> {
    if let Some(unknown) = names.iter().find(|name| every().all(|mutant| mutant.name != **name)) {
        let known: Vec<&str> = every().map(|mutant| mutant.name).collect();
        bail!("there is no mutant `{unknown}`; there are: {}", known.join(", "));
    }
    Ok(every().filter(|mutant| names.iter().any(|name| name == mutant.name)).collect())
}

fn some(number: usize, chosen_by: &str) -> Vec<&'static Mutant> {
    // FNV-1a: the same text chooses the same mutants on every machine.
    let seed = chosen_by.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    fastrand::Rng::with_seed(seed).choose_multiple(every(), number)
}

/// A mutant is caught when an assertion of each of its tests fails.
fn is_caught(workspace: &Workspace, mutant: &Mutant) -> Result<bool> {
    let _applied = workspace.apply(mutant)?;
    workspace.build(mutant.tests)?;
    let mut all = true;
    for test in mutant.tests {
        let (verdict, why) = match workspace.test(test)? {
            Tested::Red(why) => ("caught", why),
            Tested::Green => ("SURVIVED", String::new()),
            Tested::Broken(why) => ("BROKE", why),
            Tested::Hung(limit) => ("TIMED OUT", format!("it had not ended after {limit:?}")),
        };
        all &= verdict == "caught";
        say(&format!("{:<24} {verdict:<9} {test}\n{:<34} {why}", mutant.name, ""))?;
    }
    Ok(all)
}

fn say(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

#[test]
fn every_mutant_matches_sources_once_and_names_existing_tests() -> Result<()> {
    let origin = Workspace::origin()?;
    every().try_for_each(|mutant| origin.check(mutant))
}
