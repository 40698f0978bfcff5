//! Worker processes: this program as `runledger-peers worker`, so that a measurement can kill and
//! count them and read their memory.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::Arc,
};

use tokio::task::spawn_blocking;

use crate::{Result, body, figure::Figure, peer::Peer};

/// The line that a worker process prints once it claims jobs.
const READY: &str = "ready";
/// The environment variable that makes the process call [`body::hold`].
const HOLDS: &str = "RUNLEDGER_PEERS_HOLDS";

/// A worker process for this process's peer and figure. It ends with this process, or when dropped.
pub struct Process(Child);

impl Process {
    /// Starts a process and waits until it claims jobs.
    pub async fn start(holds: bool) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("worker").args(std::env::args().skip(1)).stdin(Stdio::piped()).stdout(Stdio::piped());
        if holds {
            command.env(HOLDS, "1");
        }
        let mut process = Self(command.spawn()?);
        let out = process.0.stdout.take().ok_or("a worker process has no output")?;
        let said = spawn_blocking(|| BufReader::new(out).lines().next()).await?.transpose()?;
        if said.as_deref() == Some(READY) {
            Ok(process)
        } else {
            Err("a worker process ended before it was ready".into())
        }
    }

    /// Kills the process with SIGKILL.
    pub fn kill(mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }

    /// The resident memory, in MiB.
    pub fn memory(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
        Ok(kib.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs as a worker process until the parent closes the pipe.
#[expect(clippy::print_stdout, reason = "the parent waits for the line")]
pub async fn serve<P: Peer>(url: String, figure: Figure) -> Result<()> {
    if std::env::var_os(HOLDS).is_some() {
        body::hold();
    }
    let slots = match figure {
        Figure::Processes { concurrency, .. } | Figure::Costs { concurrency, .. } => concurrency,
        Figure::Memory { workflows } | Figure::Recovery { workflows, .. } => workflows,
        _ => return Err("this figure has no worker processes".into()),
    };
    let peer = Arc::new(P::open(&url, figure).await?);
    let worker = peer.work(slots).await?;
    println!("{READY}");
    let end = spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    tokio::select! {
        worker = worker => worker??,
        end = end => drop(end??),
    }
    Ok(())
}
