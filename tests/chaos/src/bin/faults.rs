//! Runs the scenarios of the fault catalogue: `faults list`, `faults run NAME…`, `faults all` and `faults long`.
//!
//! `--seconds N` says for how long faults are injected in each, `--seed N` repeats random choices, `--rate N` says how many calls a second
//! there are, `--allow-missing` lets scenarios go by whose tools are not installed, `--keep` keeps histories and logs.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use runledger_chaos::arguments::Arguments;
use runledger_chaos::runner::{run, say};
use runledger_chaos::scenario::{Scenario, Side};
use runledger_chaos::scenarios::{all, find};
use runledger_chaos::{WORKER, load};

const USAGE: &str = "usage: faults [list | run NAME… | all | long] [--seconds N] [--seed N] [--rate N] [--allow-missing] [--keep]";

/// How long each scenario of `faults long` injects faults where nothing else is said.
const LONG: Duration = Duration::from_secs(120);

fn main() -> Result<ExitCode> {
    let mut arguments = std::env::args().skip(1).peekable();
    let command = match arguments.peek() {
        Some(first) if !first.starts_with("--") => arguments.next().unwrap_or_default(),
        _ => "all".to_owned(),
    };
    if command == WORKER {
        load::worker::main(&arguments.collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let arguments = Arguments::parse(arguments)?;
    let chosen = match (command.as_str(), arguments.names.is_empty()) {
        ("list", true) => return list(),
        ("all", true) => all(),
        ("long", true) => long(),
        ("run", false) => named(&arguments.names)?,
        _ => bail!("{USAGE}"),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let held = runtime.block_on(run(chosen, &arguments))?;
    Ok(if held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn list() -> Result<ExitCode> {
    for scenario in all() {
        say(&format!("{:<28} {:<16} {}", scenario.name, scenario.faults.join(" "), scenario.shows))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn long() -> Vec<Scenario> {
    let long = all().into_iter().filter(|scenario| scenario.is_long);
    long.map(|scenario| Scenario { load: LONG, side: Side::Alone, ..scenario }).collect()
}

fn named(names: &[String]) -> Result<Vec<Scenario>> {
    let mut chosen = Vec::new();
    for name in names {
        match find(name) {
            Some(scenario) => chosen.push(scenario),
            None => bail!("there is no scenario `{name}`; `faults list` names them"),
        }
    }
    Ok(chosen)
}
