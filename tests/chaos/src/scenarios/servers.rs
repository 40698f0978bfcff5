//! Servers that restart or crash under load.

use std::time::{Duration, Instant};

use anyhow::Result;
use runledger_tests::tools;
use sqlx::Connection;

use crate::scenario::{Scenario, Setting};
use crate::scene::PATIENT;
use crate::server::{Programs, Settings, Stop};
use crate::stage::Stage;
use crate::summary::Summary;

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
    Scenario::new(
        "notify-queue-full",
        "runs are enqueued, ended and awaited though the queue of notifications is full, only later",
        &["F41"],
        |setting| Box::pin(notify_queue_full(setting)),
    )
    .seconds(12),
];

/// A random session of a client.
const BACKEND: &str = "select pid from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid() order by random() limit 1";

/// The minimum size of the notification queue, in pages. Only PostgreSQL 17 and later can set the
/// size.
const N_PAGES: u32 = 64;
const FIRST_WITH_QUEUE_SIZE: u32 = 17;

/// A notification that nearly fills a page of the queue.
const NOTIFY: &str = "select pg_notify('nobody', repeat('x', 7900))";

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

async fn notify_queue_full(setting: Setting) -> Result<Summary> {
    let mut dice = setting.dice();
    let has_size = |(major, _): &(u32, _)| *major >= FIRST_WITH_QUEUE_SIZE;
    let found = tools::other_postgres().into_iter().find(has_size);
    let (_, bin) = found.ok_or_else(|| tools::missing("PostgreSQL 17 or later"))?;
    let settings = Settings::with(Programs::of(&bin)?).set("max_notify_queue_pages", &N_PAGES.to_string());
    let mut stage = Stage::start(&setting, settings, 3, PATIENT).await?;
    let began = Instant::now();
    while began.elapsed() < setting.load {
        tokio::time::sleep(dice.between(Duration::from_secs(1), Duration::from_secs(2))).await;
        let mut listener = stage.site.connect().await?;
        // Once `listen` is committed, the open transaction keeps every notification in the queue.
        for statement in ["listen nobody", "begin", "select 1"] {
            sqlx::raw_sql(statement).execute(&mut listener).await?;
        }
        let mut n_pages = 0;
        while n_pages <= N_PAGES && stage.cluster.execute(NOTIFY).await.is_ok() {
            n_pages += 1;
        }
        for _ in 0..3 {
            stage.works().await?;
        }
        if stage.cluster.execute(NOTIFY).await.is_ok() {
            stage.site.violations.push("the queue of notifications was not full".to_owned());
        }
        listener.close().await?;
        stage.site.n_faults += 1;
        stage.works().await?;
    }
    stage.expect_nobody_buried().await?;
    stage.judge().await
}
