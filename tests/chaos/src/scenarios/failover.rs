//! Standbys that replace their servers.

use std::time::{Duration, Instant};

use anyhow::Result;
use runledger::Db;
use runledger_tests::proxy::Mode;
use sqlx::{Connection, PgConnection};

use crate::scenario::{Scenario, Setting};
use crate::scene::{BEATING, end_lock_sessions, reaches};
use crate::server::{Cluster, Settings, Stop};
use crate::stage::{DATABASE, Stage};
use crate::summary::Summary;
use crate::tail::Content;

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
    Scenario::new(
        "split-brain",
        "who has met a promoted server writes nothing to the old one, which is still served: neither over sessions that are open, nor where the address leads \
         there again",
        &["F25"],
        |setting| Box::pin(split_brain(setting)),
    )
    .seconds(15),
];

/// How long a server runs undisturbed before the next one replaces it: at least this, and at most
/// twice this.
const BEFORE_NEXT: Duration = Duration::from_secs(1);

/// A worker marks others dead for silence only after it has known the server for a lease. If the
/// scenario also kills processes, each server lasts this much longer.
const MOURNING: Duration = Duration::from_secs(3);

/// How long the old server must receive no write.
const STILL: Duration = Duration::from_secs(4);

/// True once no worker has a heartbeat session. A worker gives up that session last.
const HEARTLESS: &str = "select (count(*) = 0)::int::bigint from pg_stat_activity where datname = current_database() and query like '-- heartbeat:%'";

/// The disks that a commit waits for.
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
        let pause = if is_synchronous { BEFORE_NEXT } else { BEFORE_NEXT + MOURNING };
        tokio::time::sleep(dice.between(pause, pause * 2)).await;
        if !is_synchronous {
            standby.stop_receiving().await?;
            // One process starts and one dies within the lost tail. The promoted server knows of
            // neither.
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
        // The old server is now reachable only through its own socket.
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

async fn split_brain(setting: Setting) -> Result<Summary> {
    let mut dice = setting.dice();
    let mut stage = Stage::start(&setting, Settings::new()?, 3, &[]).await?;
    let n_workers = i64::try_from(stage.workers.len())?;
    let began = Instant::now();
    while began.elapsed() < setting.load {
        let standby = stage.cluster.standby().await?;
        tokio::time::sleep(dice.between(Duration::from_secs(1), Duration::from_secs(2))).await;
        let mut claims = stage.site.monitor.pause().await;
        stage.proxy.set(Mode::Refuse);
        standby.promote().await?;
        let kept = Content::of(&standby.url(DATABASE)).await?;
        // Only new connections lead to the promoted server. Open ones stay with the old server.
        stage.proxy.lead_to(&standby.url(DATABASE))?;
        stage.proxy.set(Mode::Pass);
        let old = std::mem::replace(&mut stage.cluster, standby);
        let mut on_old = PgConnection::connect(&old.url(DATABASE)).await?;
        // Each worker loses one session and reconnects, and the client of this process opens one
        // more. So every process meets the promoted server.
        let n_ended = end_lock_sessions(&mut on_old).await?;
        drop(Db::connect(stage.proxy.url()).await?);
        reaches(&mut stage.site.connect().await?, BEATING, n_workers).await?;
        reaches(&mut on_old, HEARTLESS, 1).await?;
        if n_ended != n_workers {
            stage.site.violations.push(format!("{n_ended} of {n_workers} workers had a session to be ended"));
        }
        expect_still(&mut stage, &old).await?;
        stage.site.lost.extend(Content::of(&old.url(DATABASE)).await?.without(&kept));
        claims.clear();
        drop(claims);
        stage.works().await?;

        let claims = stage.site.monitor.pause().await;
        stage.proxy.lead_to(&old.url(DATABASE))?;
        stage.proxy.cut();
        let told = Db::connect(stage.proxy.url())
            .await
            .err()
            .map(|error| format!("{:#}", anyhow::Error::from(error)));
        if !told.as_ref().is_some_and(|told| told.contains("a standby was promoted in its place")) {
            stage.site.violations.push(format!("a client that met the old server was told {told:?}"));
        }
        expect_still(&mut stage, &old).await?;
        stage.proxy.lead_to(&stage.cluster.url(DATABASE))?;
        stage.proxy.cut();
        drop((claims, old));
        stage.site.n_faults += 1;
        stage.works().await?;
    }
    stage.judge().await
}

/// Adds a violation if the old server receives a write.
async fn expect_still(stage: &mut Stage, old: &Cluster) -> Result<()> {
    let before = writes(old).await?;
    tokio::time::sleep(STILL).await;
    let after = writes(old).await?;
    if after != before {
        stage.site.violations.push(format!("the old server was written to: {before} and then {after}"));
    }
    Ok(())
}

/// The engine's writes to a server, as a text that changes with every write.
async fn writes(cluster: &Cluster) -> Result<String> {
    let mut connection = PgConnection::connect(&cluster.url(DATABASE)).await?;
    let written = "select format('%s runs, %s claims, %s steps, %s ends, the last heartbeat at %s',
            (select count(*) from runledger.run), (select count(*) from audit.claim), (select count(*) from runledger.step),
            (select count(*) from runledger.outcome), (select max(heartbeat_at) from runledger.worker))";
    Ok(sqlx::query_scalar(written).fetch_one(&mut connection).await?)
}
