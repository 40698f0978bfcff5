//! Random faults for a given time: `soak --seconds N --seed N --rate N --workers N --keep`.
//!
//! What must hold is asked each second, and everything at the end. The seed is printed first, and repeats the choices.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use runledger_chaos::arguments::Arguments;
use runledger_chaos::runner::run;
use runledger_chaos::scenario::Scenario;
use runledger_chaos::soak::soak;
use runledger_chaos::{WORKER, load};

/// How long, where nothing is said.
const SHORT: Duration = Duration::from_secs(60);

fn main() -> Result<ExitCode> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.peek().is_some_and(|first| first == WORKER) {
        load::worker::main(&arguments.skip(1).collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let arguments = Arguments::parse(arguments)?;
    if let Some(name) = arguments.names.first() {
        bail!(
            "`soak` takes no names, and `{name}` is one; usage: soak [--seconds N] [--seed N] [--rate N] [--workers N] [--keep]"
        );
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let held = runtime.block_on(run(vec![Scenario { load: SHORT, ..soak() }], &arguments))?;
    Ok(if held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
