//! Injects random faults for a given time. A monitor checks invariants every second, and checkers
//! verify everything at the end.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use runledger_chaos::arguments::Arguments;
use runledger_chaos::runner::run;
use runledger_chaos::scenario::Scenario;
use runledger_chaos::soak::soak;
use runledger_chaos::{WORKER, load};

/// The default duration.
const SHORT: Duration = Duration::from_secs(60);

/// Injects random faults for one minute or for the given time, and prints the seed that repeats
/// them.
#[derive(Parser)]
#[command(name = "soak")]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    arguments: Arguments,
}

#[derive(Subcommand)]
enum Command {
    /// Run as a worker of the soak
    #[command(name = WORKER, hide = true)]
    Worker(load::worker::Options),
}

fn main() -> Result<ExitCode> {
    let Cli { command, arguments } = Cli::parse();
    if let Some(Command::Worker(options)) = command {
        load::worker::main(options)?;
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let held = runtime.block_on(run(vec![Scenario { load: SHORT, ..soak() }], &arguments))?;
    Ok(if held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
