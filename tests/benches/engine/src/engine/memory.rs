//! What a worker process weighs: idle, and with many workflows under way.

use std::time::Instant;

use runledger::enqueue_all;
use runledger::prelude::*;

use super::process::Process;
use super::{WHO, client};
use crate::Res;
use crate::arguments::Arguments;
use crate::line::Line;
use crate::work::{NOTE, connect, until};

/// Whether this process keeps workflows in the middle.
#[derive(Debug)]
pub struct Held(pub bool);

/// The steps before and after the one that is held.
pub const HALF: usize = 5;

/// Half of its steps, then one that never ends in a process that holds, then the other half.
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

/// Waits until so many workflows stand in the middle.
pub async fn until_held(url: &str, workflows: usize) -> Res<()> {
    let mut connection = connect(url).await?;
    until(&mut connection, "select count(*) from runledger.lease", workflows).await?;
    until(&mut connection, "select count(*) from runledger.step", workflows * HALF).await
}

/// The resident memory of a worker process, idle and with `--workflows` under way.
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
