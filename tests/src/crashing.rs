//! A job that kills its process, and the process that it kills.

use std::process::{Child, Command, Stdio};

use runledger::prelude::*;
use rustix::process::{Signal, getpid, kill_process};

/// Set in processes that the job may kill.
pub const MAY_CRASH: &str = "RUNLEDGER_TEST_MAY_CRASH";

/// The database of such a process.
pub const DATABASE: &str = "RUNLEDGER_TEST_CRASHING_DATABASE";

/// The name of the worker in such a process. A later worker with this name takes over its runs at
/// once.
pub const NAME: &str = "crashing";

/// Kills its process like `kill -9`, if [`MAY_CRASH`] is set. Otherwise returns its attempt number.
#[job(max_attempts = 1)]
pub async fn kills_its_process(#[inject] context: &Context) -> Result<u32> {
    if std::env::var_os(MAY_CRASH).is_some() {
        kill_process(getpid(), Signal::KILL)?;
        std::future::pending::<()>().await;
    }
    Ok(context.attempt())
}

/// Starts a process with a worker that serves the job: the program `crashing`.
///
/// # Errors
/// If the program does not start.
pub fn start(program: &str, database: &str) -> std::io::Result<Child> {
    Command::new(program).env(MAY_CRASH, "1").env(DATABASE, database).stdin(Stdio::null()).spawn()
}
