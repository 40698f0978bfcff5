//! Worker processes that share work, that wait while their memory is read, and that are killed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{Result, database::Database, figure::Outcome, peer::Peer, process::Process};

/// The pause between two queries, if the duration is the figure.
const OFTEN: Duration = Duration::from_millis(2);

/// Measures from the commit of all jobs until they are complete.
pub async fn share<P: Peer>(
    peer: &Arc<P>,
    database: &mut Database,
    processes: u64,
    jobs: u64,
) -> Result<Outcome> {
    let mut workers = Vec::new();
    for _ in 0..processes {
        workers.push(Process::start(false).await?);
    }
    let began = peer.enqueue_together(jobs).await?;
    let took = database.completed_elsewhere(jobs, OFTEN).await? - began;
    Ok(Outcome::rate(jobs, took))
}

/// Measures memory, idle and with `workflows` workflows in progress.
pub async fn memory<P: Peer>(peer: &Arc<P>, database: &mut Database, workflows: u64) -> Result<Outcome> {
    let began = Instant::now();
    let process = Process::start(true).await?;
    let idle = process.memory()?;
    peer.enqueue_held(workflows, database).await?;
    let busy = process.memory()?;
    process.kill()?;
    Ok(Outcome::named(workflows, began.elapsed()).with("idle_mib", idle).with("busy_mib", busy))
}

/// Kills a process and starts it again.
pub async fn recovery<P: Peer>(peer: &Arc<P>, database: &mut Database, workflows: u64) -> Result<Outcome> {
    let doomed = Process::start(true).await?;
    peer.enqueue_held(workflows, database).await?;
    let (began, killed_at) = (Instant::now(), database.now().await?);
    doomed.kill()?;
    let heir = Process::start(false).await?;
    database.completed_elsewhere(workflows, OFTEN).await?;
    let took = began.elapsed();
    let (claimed, ended) = database.since(killed_at).await?;
    heir.kill()?;
    Ok(Outcome::named(workflows, took).with("claimed_s", claimed).with("ended_s", ended))
}
