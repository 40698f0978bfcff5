//! The operator's command line: a thin layer over the public API, for an existing database. It
//! contains no job's code, executes no runs, and never changes the schema.
//!
//! Exit codes: 0 if the command succeeded, 1 if it was refused or found nothing, 2 for wrong usage.
//! The reason for code 1 is on standard error.

mod args;
mod database;
#[cfg(all(feature = "dev", unix))]
mod embedded;
mod graphs;
mod operate;
mod runs;
mod shown;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use runledger::Db;

use self::args::{Cli, Command, Wanted};
use self::shown::sentence;

/// The output of a command, or its error.
type Said = Result<String, Box<dyn Error>>;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let said = match runtime {
        Ok(runtime) => runtime.block_on(answer(cli)),
        Err(error) => Err(error.into()),
    };
    match said {
        Ok(said) => written(io::stdout().lock().write_all(said.as_bytes())),
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {}", sentence(&*error));
            ExitCode::FAILURE
        }
    }
}

/// A closed pipe is not an error: a reader such as `head` has seen enough.
fn written(result: io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: the output cannot be written: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn answer(cli: Cli) -> Said {
    match cli.wanted {
        Wanted::Command(command) => {
            let database = database::find(cli.database_url).await?;
            carry_out(command, &database.url, cli.json).await
        }
        #[cfg(all(feature = "dev", unix))]
        Wanted::Dev { folder } => embedded::keep_running(&folder, cli.json).await,
    }
}

async fn carry_out(command: Command, url: &str, json: bool) -> Said {
    // A command must not migrate the database of an older fleet. The read-only connection refuses
    // such a database before the command connects to write.
    let mut db = Db::connect_read_only(url).await?;
    if command.writes() {
        db = Db::connect(url).await?;
    }
    match command {
        Command::Gate(gate) => graphs::decide(&db, gate, json).await,
        Command::Graph { run, format } => graphs::picture(&db, run, format, json).await,
        Command::Runs(wanted) => runs::list(&db, wanted, json).await,
        Command::Run { run, scope } => runs::show(&db, run, &scope.into(), json).await,
        Command::Steps { run } => runs::steps(&db, run, json).await,
        Command::Timeline { run } => runs::timeline(&db, run, json).await,
        Command::Logs { run, from } => runs::logs(&db, run, from, json).await,
        Command::Metrics { scope, window } => operate::metrics(&db, scope.into(), window, json).await,
        Command::Resources => operate::resources(&db, json).await,
        Command::Permits { name, permits, .. } => operate::permits(&db, &name, permits, json).await,
        Command::Cancel { run, reason } => operate::cancel(&db, run, &reason, json).await,
        Command::Pause { run, reason } => operate::pause(&db, run, &reason, json).await,
        Command::Resume { run } => operate::resume(&db, run, json).await,
        Command::Adopt => operate::adopt(&db, json).await,
        Command::Disable { job, why } => operate::disable(&db, &job, &why, json).await,
        Command::Enable { job } => operate::enable(&db, &job, json).await,
    }
}
