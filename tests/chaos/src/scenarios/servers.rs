//! Servers that are restarted and crash, under load.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::scenario::{Scenario, Setting};
use crate::scene::PATIENT;
use crate::server::{Settings, Stop};
use crate::stage::Stage;
use crate::summary::Summary;

/// The scenarios of this file.
pub const ALL: &[Scenario] = &[
    Scenario::new(
        "restart",
        "a fleet outlives restarts of its server, and ten seconds without one, and nobody is taken for dead",
        &["F18"],
        |setting| Box::pin(restart(setting)),
    )
    .seconds(25),
    Scenario::new(
        "crash-restart",
        "what was acknowledged is there after every crash of the server, and the fleet goes on",
        &["F19", "F20", "F21"],
        |setting| Box::pin(crash_restart(setting)),
    )
    .seconds(25)
    .long(),
];

/// A session of a client, any.
const BACKEND: &str = "select pid from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid() order by random() limit 1";

async fn restart(setting: Setting) -> Result<Summary> {
    let mut dice = setting.dice();
    let mut stage = Stage::start(&setting, Settings::new()?, 3, PATIENT).await?;
    let began = Instant::now();
    let mut outage = Duration::from_secs(10);
    while began.elapsed() < setting.load {
        tokio::time::sleep(dice.between(Duration::from_secs(1), Duration::from_secs(3))).await;
        stage.cluster.stop(Stop::Fast).await?;
        tokio::time::sleep(outage).await;
        stage.cluster.start().await?;
        stage.site.n_faults += 1;
        stage.works().await?;
        outage = dice.between(Duration::ZERO, Duration::from_millis(1500));
    }
    stage.expect_nobody_buried().await?;
    stage.judge().await
}

async fn crash_restart(setting: Setting) -> Result<Summary> {
    let mut dice = setting.dice();
    let mut stage = Stage::start(&setting, Settings::new()?, 3, PATIENT).await?;
    let began = Instant::now();
    let mut kind = 0;
    while began.elapsed() < setting.load {
        tokio::time::sleep(dice.between(Duration::from_millis(500), Duration::from_millis(2500))).await;
        match kind % 3 {
            0 => {
                stage.cluster.stop(Stop::Immediate).await?;
                stage.cluster.start().await?;
            }
            1 => {
                stage.cluster.kill_one(BACKEND).await?;
                stage.cluster.ready().await?;
            }
            _ => {
                stage.cluster.kill().await?;
                stage.cluster.start().await?;
            }
        }
        kind += 1;
        stage.site.n_faults += 1;
        stage.works().await?;
    }
    stage.expect_nobody_buried().await?;
    stage.judge().await
}
