//! Full disks, and a slow disk.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use runledger_tests::tools;

use crate::scenario::{Scenario, Setting};
use crate::scene::PATIENT;
use crate::server::{Disk, Settings};
use crate::stage::Stage;
use crate::summary::Summary;

pub const ALL: &[Scenario] = &[
    Scenario::new(
        "full-disk",
        "a fleet whose server has no room for data waits, and goes on when there is some",
        &["F28"],
        |setting| Box::pin(full_disk(setting)),
    )
    .seconds(20),
    Scenario::new(
        "full-wal",
        "a server that dies because its log has no room keeps what was acknowledged, and the fleet waits for it",
        &["F29"],
        |setting| Box::pin(full_wal(setting)),
    )
    .seconds(20),
    Scenario::new(
        "slow-disk",
        "while a commit takes seconds, nobody is taken for dead",
        &["F30"],
        |setting| Box::pin(slow_disk(setting)),
    )
    .seconds(20),
];

/// Megabytes for a fresh server and the fleet's data until the disk is filled.
const DATA: u64 = 160;

/// Megabytes of the WAL volume: twice `max_wal_size`.
const WAL: u64 = 96;

/// How long a fault lasts: longer than a passing shortage of space.
const FULL: Duration = Duration::from_secs(5);

/// The duration of a commit.
const SLOW_MICROS: u32 = 1_500_000;

async fn full_disk(setting: Setting) -> Result<Summary> {
    let mut dice = setting.dice();
    let mut stage = Stage::start(&setting, Settings::new()?.small(Disk::Data, DATA), 3, &[]).await?;
    let began = Instant::now();
    while began.elapsed() < setting.load {
        tokio::time::sleep(dice.between(Duration::from_secs(1), Duration::from_secs(2))).await;
        stage.cluster.volume()?.fill()?;
        let refused =
            stage.cluster.execute("create table ballast as select * from generate_series(1, 100000)").await;
        tokio::time::sleep(FULL).await;
        stage.cluster.volume()?.free()?;
        stage.site.n_faults += 1;
        let code = refused.as_ref().err().and_then(|error| error.downcast_ref::<sqlx::Error>());
        let code = code.and_then(sqlx::Error::as_database_error).and_then(sqlx::error::DatabaseError::code);
        if code.as_deref() != Some("53100") {
            stage.site.violations.push(format!("the disk was not full: {refused:?}"));
        }
        // The server restarts by itself if it could not write one of its own files.
        stage.cluster.ready().await?;
        stage.works().await?;
    }
    stage.judge().await
}

async fn full_wal(setting: Setting) -> Result<Summary> {
    let mut dice = setting.dice();
    let settings = Settings::new()?
        .small(Disk::Wal, WAL)
        .set("wal_keep_size", "0")
        .set("min_wal_size", "32MB")
        .set("max_wal_size", "48MB");
    let mut stage = Stage::start(&setting, settings, 3, &[]).await?;
    let began = Instant::now();
    while began.elapsed() < setting.load {
        tokio::time::sleep(dice.between(Duration::from_secs(1), Duration::from_secs(2))).await;
        stage.cluster.volume()?.fill()?;
        // The server first uses up preallocated segments.
        while stage.cluster.execute("select pg_switch_wal(); create temporary table filler ()").await.is_ok()
        {
        }
        tokio::time::sleep(FULL).await;
        stage.cluster.volume()?.free()?;
        // The server may have shut down, because recovery needs space too.
        if !stage.cluster.is_up() {
            stage.cluster.start().await?;
        }
        stage.cluster.ready().await?;
        stage.site.n_faults += 1;
        stage.works().await?;
    }
    let log = stage.cluster.log()?;
    if !log.contains("PANIC") {
        stage.site.violations.push("the server did not die".to_owned());
    }
    stage.judge().await
}

async fn slow_disk(setting: Setting) -> Result<Summary> {
    let mut dice = setting.dice();
    let slowness = setting.folder.join("slowness");
    fs::write(&slowness, "0")?;
    let library = tools::slow_fsync()?;
    let environment = [("LD_PRELOAD".into(), library.into()), ("SLOW_FSYNC".into(), slowness.clone().into())];
    let settings = Settings::new()?.environment(environment).set("wal_sync_method", "fdatasync");
    let mut stage = Stage::start(&setting, settings, 3, PATIENT).await?;
    let began = Instant::now();
    while began.elapsed() < setting.load {
        tokio::time::sleep(dice.between(Duration::from_secs(1), Duration::from_secs(2))).await;
        fs::write(&slowness, SLOW_MICROS.to_string())?;
        let slow = Instant::now();
        stage
            .cluster
            .execute("create table slow (); drop table slow")
            .await
            .context("a commit on a slow disk")?;
        if slow.elapsed() < Duration::from_micros(SLOW_MICROS.into()) {
            stage.site.violations.push("the disk was not slow".to_owned());
        }
        tokio::time::sleep(FULL).await;
        fs::write(&slowness, "0")?;
        stage.site.n_faults += 1;
        stage.works().await?;
    }
    stage.expect_nobody_buried().await?;
    stage.judge().await
}
