//! Servers whose place a standby takes.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::scenario::{Scenario, Setting};
use crate::server::{Settings, Stop};
use crate::stage::{DATABASE, Stage};
use crate::summary::Summary;
use crate::tail::Content;

/// The scenarios of this file.
pub const ALL: &[Scenario] = &[
    Scenario::new(
        "async-promotion",
        "the promotion of a standby that lags behind loses exactly what the standby did not have, and nothing else",
        &["F22"],
        |setting| Box::pin(promotions(setting, Commit::Alone)),
    )
    .seconds(30)
    .long(),
    Scenario::new(
        "sync-promotion",
        "the promotion of a synchronous standby loses nothing that was acknowledged",
        &["F23"],
        |setting| Box::pin(promotions(setting, Commit::WithStandby)),
    )
    .seconds(25),
];

/// What a commit waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Commit {
    /// The server's own disk.
    Alone,
    /// The standby too.
    WithStandby,
}

async fn promotions(setting: Setting, commit: Commit) -> Result<Summary> {
    let mut dice = setting.dice();
    let mut stage = Stage::start(&setting, Settings::new()?, 3, &[]).await?;
    let began = Instant::now();
    let mut n_lost = 0;
    while began.elapsed() < setting.load {
        let standby = stage.cluster.standby().await?;
        let is_synchronous = commit == Commit::WithStandby;
        if is_synchronous {
            stage.cluster.wait_for_standby(true).await?;
        }
        tokio::time::sleep(dice.between(Duration::from_secs(1), Duration::from_secs(3))).await;
        if !is_synchronous {
            standby.stop_receiving().await?;
            // A process that comes and one that goes in the tail: the promoted server knows of neither.
            let fresh = stage.site.worker_at(stage.proxy.url(), &[]).await?;
            let victim = std::mem::replace(&mut stage.workers[0], fresh);
            victim.kill().await?;
            tokio::time::sleep(dice.between(Duration::from_millis(200), Duration::from_millis(1500))).await;
        }
        let mut claims = stage.site.monitor.pause().await;
        stage.cluster.stop(Stop::Immediate).await?;
        if !is_synchronous {
            standby.forget_received().await?;
        }
        standby.promote().await?;
        let kept = Content::of(&standby.url(DATABASE)).await?;
        let old = stage.succeed(standby)?;
        claims.clear();
        drop(claims);
        stage.site.n_faults += 1;
        // Nobody reaches it any more but by its own socket.
        old.start().await?;
        let had = Content::of(&old.url(DATABASE)).await?;
        drop(old);
        if !kept.runs.is_subset(&had.runs) {
            stage.site.violations.push("the promoted server has runs that the old one had not".to_owned());
        }
        if !is_synchronous {
            let tail = had.without(&kept);
            n_lost += tail.runs.len();
            stage.site.lost.extend(tail);
        }
        stage.works().await?;
    }
    if commit == Commit::Alone {
        stage.site.notes.push(format!("{n_lost} runs were on an old server and not on the promoted one"));
        if n_lost == 0 {
            stage.site.violations.push("no tail was lost, so that nothing is shown".to_owned());
        }
    }
    stage.judge().await
}
