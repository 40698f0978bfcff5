//! Shows that the checks of the guarantees can fail: builds the workspace with one deliberate defect at a
//! time, and expects the tests for that defect to fail.
//!
//! `cargo run -p runledger-tests --bin mutants [name…]`; `mutants list` only prints the mutants and their
//! tests; `mutants some 3 COMMIT` runs three mutants, which it chooses from the text `COMMIT`.
//!
//! It works on a copy of the sources in `<target>/mutants`, with its own target folder there, so that a
//! second call is fast. Every replacement must match exactly once, and the tests must pass without it;
//! otherwise the result would mean nothing. Only a failing assertion counts. A test that returns an error or
//! times out shows nothing.

mod catalogue;
mod seed;
mod workspace;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use catalogue::{MUTANTS, Mutant};
use workspace::{Tested, Workspace};

fn main() -> Result<ExitCode> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    if names == ["list"] {
        return list();
    }
    let chosen = choose(&names)?;
    let workspace = Workspace::copy()?;
    chosen.iter().try_for_each(|mutant| workspace.check(mutant))?;
    let mut tests: Vec<&'static str> = chosen.iter().flat_map(|mutant| mutant.tests).copied().collect();
    tests.sort_unstable();
    tests.dedup();
    say(&format!("{} mutants; first, their {} tests without them", chosen.len(), tests.len()))?;
    workspace.build(&tests)?;
    for test in tests {
        match workspace.test(test)? {
            Tested::Green => {}
            Tested::Red(why) | Tested::Broken(why) => {
                bail!("`{test}` fails without any mutant, so it shows nothing: {why}")
            }
            Tested::Hung(limit) => bail!("`{test}` has not ended after {limit:?} without any mutant"),
        }
    }
    let mut n_survivors = 0;
    for mutant in chosen {
        n_survivors += usize::from(!is_caught(&workspace, mutant)?);
    }
    say(&format!("{n_survivors} were not caught"))?;
    Ok(if n_survivors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Every mutant, with the tests that must find it.
fn list() -> Result<ExitCode> {
    for mutant in MUTANTS {
        say(&format!("{:<28} {}", mutant.name, mutant.tests.join(", ")))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn choose(names: &[String]) -> Result<Vec<&'static Mutant>> {
    if let [some, number, commit] = names
        && some == "some"
    {
        let number = number.parse().with_context(|| format!("`{number}` is no number of mutants"))?;
        // FNV-1a: the same text chooses the same mutants on every machine.
        let seed = commit.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        return Ok(fastrand::Rng::with_seed(seed).choose_multiple(MUTANTS, number));
    }
    if let Some(unknown) = names.iter().find(|name| MUTANTS.iter().all(|mutant| mutant.name != **name)) {
        let known: Vec<&str> = MUTANTS.iter().map(|mutant| mutant.name).collect();
        bail!("there is no mutant `{unknown}`; there are: {}", known.join(", "));
    }
    let is_chosen = |mutant: &&Mutant| names.is_empty() || names.iter().any(|name| name == mutant.name);
    Ok(MUTANTS.iter().filter(is_chosen).collect())
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
