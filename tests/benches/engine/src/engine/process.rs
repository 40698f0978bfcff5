//! Worker processes: this program as `bench worker`, so that a measurement can kill and count them
//! and read their memory.

use std::process::Stdio;

use runledger::prelude::*;
use runledger::{Db, Timings};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};

use super::client;
use super::drain::{Tally, no_op};
use super::memory::{Held, held};
use super::sleepers::sleeps;
use crate::Res;
use crate::arguments::Arguments;

/// The line that a worker process prints once it claims runs.
const READY: &str = "ready";

/// A worker process. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pub worker_id: i64,
}

impl Process {
    /// Starts a process and waits until it claims runs.
    pub async fn start(url: &str, settings: &[(&str, usize)]) -> Res<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("worker").env("DATABASE_URL", url);
        for (name, value) in settings {
            command.arg(format!("--{name}")).arg(value.to_string());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let out = child.stdout.take().ok_or("a worker process has no output")?;
        let said = BufReader::new(out).lines().next_line().await?.unwrap_or_default();
        let number = said.strip_prefix(READY).ok_or("a worker process ended before it was ready")?;
        Ok(Self { child, worker_id: number.trim().parse()? })
    }

    /// Kills the process with SIGKILL.
    pub async fn kill(mut self) -> Res<()> {
        Ok(self.child.kill().await?)
    }

    /// Closes the process's input, which makes it shut down gracefully.
    pub async fn stop(mut self) -> Res<()> {
        drop(self.child.stdin.take());
        let ended = self.child.wait().await?;
        if ended.success() { Ok(()) } else { Err(format!("a worker process ended with {ended}").into()) }
    }

    /// The resident memory, in MiB.
    pub fn memory(&self) -> Res<f64> {
        let pid = self.child.id().ok_or("the worker process has ended")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
        Ok(kib.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
    }
}

/// Runs as a worker process until the parent closes the pipe.
#[expect(clippy::print_stdout, reason = "the parent waits for the line")]
pub async fn serve(url: &str, arguments: &Arguments) -> Res<()> {
    let timings = if arguments.get("fast", 0) == 1 { Timings::FAST } else { Timings::DEFAULT };
    let db: Db = client(url, arguments.count("connections", 10)).await?;
    let mut app = App::new(db)
        .with(jobs![no_op, sleeps, held])
        .provide(Tally::of(usize::MAX))
        .provide(Held(arguments.get("hold", 0) == 1))
        .concurrency(arguments.count("concurrency", 512))
        .timings(timings);
    if let name @ 1.. = arguments.get("name", 0) {
        app = app.name(format!("bench-{name}"));
    }
    arguments.check_all_used()?;
    let worker = app.start().await?;
    println!("{READY} {}", worker.id());
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    worker.stop().await;
    Ok(())
}
