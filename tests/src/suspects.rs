//! Jobs for crash tests: some end their process, the others are innocent.

use std::time::Duration;

use runledger::prelude::*;

/// The name of the worker. A new process with the same name takes over the runs of the old one at
/// once.
pub const NAME: &str = "supervised";

/// The name and the queue of a second worker in the same process.
pub const APART: &str = "apart";

/// How many runs one process executes at the same time.
pub const SLOTS: usize = 64;

/// Ends its process with the status 3, as a user's library might.
#[job(max_attempts = 1)]
pub async fn exits() -> Result<()> {
    std::process::exit(3)
}

/// Sleeps for `millis` and returns it.
#[job(max_attempts = 1)]
pub async fn takes_a_while(millis: u64) -> Result<u64> {
    tokio::time::sleep(Duration::from_millis(millis)).await;
    Ok(millis)
}

/// Records a step in each attempt and ends its process 12 s later. If `sleeps`, it leaves its
/// worker for a short sleep in between. Completes after `n_exits` such attempts.
#[workflow(max_attempts = 1, allow(io, sleep))]
pub async fn exits_late(wf: &Wf, n_exits: u32, sleeps: bool) -> Result<()> {
    for _ in 0..n_exits {
        let process = wf.step("part", || async { Ok::<_, Error>(std::process::id()) }).await?;
        if sleeps {
            wf.sleep(Duration::from_millis(400)).await?;
        }
        if process == std::process::id() {
            tokio::time::sleep(Duration::from_secs(12)).await;
            std::process::exit(3)
        }
    }
    Ok(())
}
