//! Runs the scenarios of the fault catalogue.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};
use runledger_chaos::arguments::Arguments;
use runledger_chaos::runner::{run, say};
use runledger_chaos::scenario::{Scenario, Side};
use runledger_chaos::scenarios::{all, find};
use runledger_chaos::{WORKER, load};

/// The default duration of faults in each scenario of `faults long`.
const LONG: Duration = Duration::from_secs(120);

/// Runs the scenarios of the fault catalogue.
#[derive(Parser)]
#[command(name = "faults")]
struct Cli {
    /// All scenarios if no command is given
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    arguments: Arguments,
}

#[derive(Subcommand)]
enum Command {
    /// List the scenarios, their faults and what they show
    List,
    /// Run some scenarios
    Run {
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Run all scenarios
    All,
    /// Run the scenarios that find more in a longer run, two minutes each
    Long,
    /// Run as a worker of a scenario
    #[command(name = WORKER, hide = true)]
    Worker(load::worker::Options),
}

fn main() -> Result<ExitCode> {
    let Cli { command, arguments } = Cli::parse();
    let chosen = match command.unwrap_or(Command::All) {
        Command::List => return list(),
        Command::All => all(),
        Command::Long => long(),
        Command::Run { names } => named(&names)?,
        Command::Worker(options) => {
            load::worker::main(options)?;
            return Ok(ExitCode::SUCCESS);
        }
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
