//! Many sleeping workflows that fall due at once.

use std::time::Duration;

use runledger::prelude::*;

use super::process::Process;
use super::{WHO, client, copies, ended};
use crate::Res;
use crate::arguments::Arguments;
use crate::line::Line;
use crate::work::{NOTE, connect, until};

/// Sleepers created per second, at least, on a slow machine.
const MADE_A_SECOND: u64 = 15_000;

#[workflow]
pub async fn sleeps(wf: &Wf, seconds: u64) -> Result<usize> {
    let noted = wf.step("note", || async { Ok::<_, Error>(NOTE.to_owned()) }).await?;
    wf.sleep(Duration::from_secs(seconds)).await?;
    Ok(noted.len())
}

/// Measures the memory of a worker process without and with `--runs` sleepers, and how fast it
/// wakes, claims and completes them.
pub async fn measure(url: &str, arguments: &Arguments) -> Res<Line> {
    let (runs, concurrency) = (arguments.count("runs", 1_000_000), arguments.count("concurrency", 512));
    let seconds = arguments.get("ahead", 10 + runs as u64 / MADE_A_SECOND);
    let db = client(url, 4).await?;
    let mut connection = connect(url).await?;
    let process = Process::start(url, &[("concurrency", concurrency)]).await?;
    let first = sleeps(seconds).enqueue(&db).await?.id();
    until(&mut connection, "select count(*) from runledger.ready where cause = 'slept'", 1).await?;
    let idle = process.memory()?;
    copies::make(&mut connection, first, &["run", "step", "ready"], runs - 1).await?;
    let (due, left) = copies::due(&mut connection).await?;
    let asleep = process.memory()?;
    tokio::time::sleep(left).await;
    until(&mut connection, "select count(*) from runledger.outcome where state = 'completed'", runs).await?;
    let woken = process.memory()?;
    let took = ended::nth(&mut connection, "sleeps", &due, runs).await?;
    process.kill().await?;
    Ok(Line::rate(WHO, "sleepers", arguments, runs, took)
        .with("idle_mib", idle)
        .with("asleep_mib", asleep)
        .with("growth_mib", asleep - idle)
        .with("woken_mib", woken)
        .noting("one worker process; from the instant at which all fell due until the last was recorded as completed"))
}
