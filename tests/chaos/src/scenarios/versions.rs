//! Other major versions of PostgreSQL.

use std::time::{Duration, Instant};

use anyhow::Result;
use runledger_tests::tools;

use crate::scenario::{Scenario, Setting};
use crate::server::{Programs, Settings, Stop};
use crate::stage::Stage;
use crate::summary::Summary;

/// One short scenario per version, all the same.
pub const ALL: &[Scenario] = &[
    of("postgres-13", |setting| Box::pin(version(setting, 13))),
    of("postgres-14", |setting| Box::pin(version(setting, 14))),
    of("postgres-15", |setting| Box::pin(version(setting, 15))),
    of("postgres-16", |setting| Box::pin(version(setting, 16))),
    of("postgres-17", |setting| Box::pin(version(setting, 17))),
    of("postgres-18", |setting| Box::pin(version(setting, 18))),
];

const fn of(
    name: &'static str,
    run: fn(Setting) -> futures::future::BoxFuture<'static, Result<Summary>>,
) -> Scenario {
    Scenario::new(
        name,
        "a fleet on this version outlives a killed worker and a crash of the server",
        &["F104"],
        run,
    )
    .seconds(6)
}

async fn version(setting: Setting, major: u32) -> Result<Summary> {
    let found = tools::other_postgres().into_iter().find(|(found, _)| *found == major);
    let (_, bin) = found.ok_or_else(|| tools::missing(&format!("PostgreSQL {major}")))?;
    let mut stage = Stage::start(&setting, Settings::with(Programs::of(&bin)?), 3, &[]).await?;
    let began = Instant::now();
    while began.elapsed() < setting.load {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let fresh = stage.site.worker_at(stage.proxy.url(), &[]).await?;
        std::mem::replace(&mut stage.workers[0], fresh).kill().await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        stage.cluster.stop(Stop::Immediate).await?;
        stage.cluster.start().await?;
        stage.site.n_faults += 2;
        stage.works().await?;
    }
    let version = stage.cluster.version().await?;
    stage.site.notes.push(version);
    stage.judge().await
}
