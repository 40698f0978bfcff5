//! Processes that are killed, paused and asked to stop.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::scenario::{Scenario, Setting};
use crate::site::Site;
use crate::summary::Summary;

/// The scenarios of this file.
pub const ALL: &[Scenario] = &[Scenario::new(
    "kill-nine",
    "the runs of processes that are killed anywhere go on in others, and nothing recorded is repeated",
    &["F01", "F02", "F03"],
    |setting| Box::pin(kill_nine(setting)),
)
.seconds(20)
.long()];

/// Workers beside the one that is killed.
const OTHERS: usize = 2;

async fn kill_nine(setting: Setting) -> Result<Summary> {
    let mut dice = setting.dice();
    let mut site = Site::new(&setting).await?;
    let mut workers = Vec::new();
    for _ in 0..=OTHERS {
        workers.push(site.worker().await?);
    }
    let client = site.client(&setting).await?;
    let began = Instant::now();
    while began.elapsed() < setting.load {
        tokio::time::sleep(dice.between(Duration::from_millis(500), Duration::from_millis(2500))).await;
        let victim = workers.swap_remove(dice.index(workers.len()));
        victim.kill().await?;
        site.n_faults += 1;
        workers.push(site.worker().await?);
    }
    site.judge(client).await
}
