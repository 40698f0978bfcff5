//! The memory of a worker process: idle, and with many workflows in progress.

use std::time::Instant;

use runledger::enqueue_all;
use runledger::prelude::*;

use super::process::Process;
use super::{WHO, client};
use crate::Res;
use crate::arguments::Arguments;
use crate::line::Line;
use crate::work::{NOTE, connect, until};

/// Whether workflows in this process stop at the middle step.
#[derive(Debug)]
pub struct Held(pub bool);

/// The number of steps before the middle step, and after it.
pub const HALF: usize = 5;

/// In a process with `Held(true)` the middle step never ends.
#[workflow]
pub async fn held(wf: &Wf, #[inject] hold: &Held) -> Result<()> {
    for n in 0..HALF {
        wf.step("before", || async move { Ok::<_, Error>((n, NOTE.to_owned())) }).await?;
    }
    wf.step("hold", || async {
        if hold.0 {
            std::future::pending::<()>().await;
        }
        Ok::<_, Error>(())
    })
    .await?;
    for n in 0..HALF {
        wf.step("after", || async move { Ok::<_, Error>((n, NOTE.to_owned())) }).await?;
    }
    Ok(())
}

/// Waits until `workflows` workflows have reached the middle step.
pub async fn until_held(url: &str, workflows: usize) -> Res<()> {
    let mut connection = connect(url).await?;
    until(&mut connection, "select count(*) from runledger.lease", workflows).await?;
    until(&mut connection, "select count(*) from runledger.step", workflows * HALF).await
}

/// Measures the resident memory of a worker process, idle and with `--workflows` in progress.
pub async fn measure(url: &str, arguments: &Arguments) -> Res<Line> {
    let workflows = arguments.count("workflows", 512);
    let db = client(url, 4).await?;
    let began = Instant::now();
    let process = Process::start(url, &[("hold", 1), ("concurrency", workflows)]).await?;
    let idle = process.memory()?;
    enqueue_all((0..workflows).map(|_| held()), &db).await?;
    until_held(url, workflows).await?;
    let busy = process.memory()?;
    process.kill().await?;
    Ok(Line::named(WHO, "memory", arguments, workflows, began.elapsed())
        .with("idle_mib", idle)
        .with("busy_mib", busy)
        .noting(
            "resident memory of a release build; each workflow has five recorded steps and is in the sixth",
        ))
}
