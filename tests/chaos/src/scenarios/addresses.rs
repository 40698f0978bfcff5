//! Addresses that change their target: to a standby, to a restored server, through a pooler.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Result;
use runledger::{App, Db};
use runledger_tests::check::fleet::Process;
use runledger_tests::pooler::{self, Bouncer};
use runledger_tests::proxy::{Mode, Proxy};
use runledger_tests::tools;
use sqlx::postgres::PgConnectOptions;
use tokio::process::Command;

use crate::load::jobs;
use crate::scenario::{Scenario, Setting};
use crate::scene::{BEATING, reaches};
use crate::server::{Cluster, Settings};
use crate::stage::{DATABASE, Stage};
use crate::summary::Summary;
use crate::tail::Content;

pub const ALL: &[Scenario] = &[
    Scenario::new(
        "read-only",
        "a fleet whose address leads to a standby, or whose server is read-only, claims nothing and waits",
        &["F26"],
        |setting| Box::pin(read_only(setting)),
    )
    .seconds(15),
    Scenario::new(
        "restored",
        "a server that is restored from a dump of running runs goes on with exactly what the dump has",
        &["F47"],
        |setting| Box::pin(restored(setting)),
    )
    .seconds(12),
    Scenario::new(
        "pooler",
        "a worker behind PgBouncer in transaction mode is refused; one in session mode outlives its restarts",
        &["F48", "F49"],
        |setting| Box::pin(pooler(setting)),
    )
    .seconds(15),
    Scenario::new(
        "name-moves",
        "workers that know their server by its name go on at the address that the name leads to next",
        &["F58"],
        |setting| Box::pin(name_moves(setting)),
    )
    .seconds(12),
];

/// The server's name, and the addresses that it resolves to in turn.
const NAME: &str = "server.runledger.test";
const ADDRESSES: [&str; 2] = ["127.0.0.1", "127.0.0.2"];

/// Gives a process its own host names, from the file `$1`, which can change.
const WITH_NAMES: &str = r#"mount --bind "$1" /etc/hosts && shift && exec "$@""#;

/// How long an address leads to the wrong server.
const WRONG: Duration = Duration::from_secs(4);

async fn read_only(setting: Setting) -> Result<Summary> {
    let mut dice = setting.dice();
    let mut stage = Stage::start(&setting, Settings::new()?, 3, &[]).await?;
    let standby = stage.cluster.standby().await?;
    let began = Instant::now();
    while began.elapsed() < setting.load {
        tokio::time::sleep(dice.between(Duration::from_secs(1), Duration::from_secs(2))).await;
        stage.proxy.lead_to(&standby.url(DATABASE))?;
        stage.proxy.cut();
        let refused = Db::connect(stage.proxy.url()).await;
        if refused.is_ok() {
            stage.site.violations.push("a client accepted a standby".to_owned());
        }
        tokio::time::sleep(WRONG).await;
        stage.proxy.lead_to(&stage.cluster.url(DATABASE))?;
        stage.proxy.cut();
        stage.site.n_faults += 1;
        stage.works().await?;

        stage.cluster.set("default_transaction_read_only", "on").await?;
        tokio::time::sleep(WRONG).await;
        stage.cluster.set("default_transaction_read_only", "off").await?;
        stage.site.n_faults += 1;
        stage.works().await?;
    }
    stage.judge().await
}

async fn restored(setting: Setting) -> Result<Summary> {
    let mut dice = setting.dice();
    let mut stage = Stage::start(&setting, Settings::new()?, 3, &[]).await?;
    let began = Instant::now();
    while began.elapsed() < setting.load {
        tokio::time::sleep(dice.between(Duration::from_secs(2), Duration::from_secs(3))).await;
        let dump = setting.folder.join("dump.sql");
        stage.cluster.dump(DATABASE, &dump).await?;
        tokio::time::sleep(dice.between(Duration::from_millis(200), Duration::from_secs(1))).await;
        let next = Cluster::start_new(Settings::new()?).await?;
        next.create_database(DATABASE).await?;
        next.restore(DATABASE, &dump).await?;
        Db::connect(&next.url(DATABASE)).await?.adopt().await?;
        let mut claims = stage.site.monitor.pause().await;
        let kept = Content::of(&next.url(DATABASE)).await?;
        let old = stage.succeed(next)?;
        claims.clear();
        drop(claims);
        stage.site.lost.extend(Content::of(&old.url(DATABASE)).await?.without(&kept));
        stage.site.n_faults += 1;
        stage.works().await?;
    }
    stage.judge().await
}

async fn pooler(setting: Setting) -> Result<Summary> {
    let mut dice = setting.dice();
    let mut stage = Stage::start(&setting, Settings::new()?, 1, &[]).await?;
    let url = stage.cluster.url(DATABASE);

    let transactions = Bouncer::start(&url, pooler::Mode::Transaction, 20).await?;
    if let Ok(db) = Db::connect(transactions.url()).await {
        let started = App::new(db.clone()).with(jobs::all()).provide(db).start().await;
        if let Ok(worker) = started {
            stage.site.violations.push("a worker started behind a pooler in transaction mode".to_owned());
            worker.stop().await;
        }
    }
    drop(transactions);

    let mut sessions = Bouncer::start(&url, pooler::Mode::Session, 40).await?;
    for _ in 0..2 {
        let worker = stage.site.worker_at(sessions.url(), &[]).await?;
        stage.workers.push(worker);
    }
    let began = Instant::now();
    while began.elapsed() < setting.load {
        tokio::time::sleep(dice.between(Duration::from_secs(1), Duration::from_secs(3))).await;
        sessions.restart().await?;
        stage.site.n_faults += 1;
        stage.works().await?;
    }
    // The runs of the worker without a pooler move to the others.
    stage.workers.remove(0).kill().await?;
    stage.works().await?;
    stage.judge().await
}

async fn name_moves(setting: Setting) -> Result<Summary> {
    let mut dice = setting.dice();
    let hosts = setting.folder.join("hosts");
    // Written in place, because the bind mount refers to this file and not to its name.
    let lead_to = |address: &str| std::fs::write(&hosts, format!("{address} {NAME}\n"));
    lead_to(ADDRESSES[0])?;
    has_own_names(&hosts).await?;
    let mut stage = Stage::start(&setting, Settings::new()?, 0, &[]).await?;
    let server = stage.cluster.url(DATABASE);
    let first = Proxy::start(&server).await?;
    let port = first.url().parse::<PgConnectOptions>()?.get_port();
    let ways = [first, Proxy::at(&server, (ADDRESSES[1], port)).await?];
    ways[1].set(Mode::Refuse);
    let url = ways[0].url().replacen(ADDRESSES[0], NAME, 1);
    for _ in 0..3 {
        let command = named(&hosts, &std::env::current_exe()?);
        let worker = Process::start(&mut stage.site.command_of(command, &url, &[])?).await?;
        stage.workers.push(worker);
    }
    let n_workers = i64::try_from(stage.workers.len())?;
    let (began, mut at) = (Instant::now(), 0);
    while began.elapsed() < setting.load {
        tokio::time::sleep(dice.between(Duration::from_secs(1), Duration::from_secs(2))).await;
        ways[at].set(Mode::Refuse);
        ways[at].cut();
        at = 1 - at;
        ways[at].set(Mode::Pass);
        lead_to(ADDRESSES[at])?;
        stage.site.n_faults += 1;
        stage.works().await?;
        reaches(&mut stage.site.connect().await?, BEATING, n_workers).await?;
    }
    stage.judge().await
}

/// A command that runs a program with its own host names.
fn named(hosts: &Path, program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", WITH_NAMES, "sh"]).arg(hosts).arg(program);
    command
}

async fn has_own_names(hosts: &Path) -> Result<()> {
    let tried = named(hosts, Path::new("true")).stdout(Stdio::null()).stderr(Stdio::null()).status().await;
    let lacking = || tools::Missing {
        what: "`/etc/hosts` for some processes alone".to_owned(),
        remedy: "run as root where `unshare` and `mount --bind` are allowed",
    };
    Ok(tried.is_ok_and(|status| status.success()).then_some(()).ok_or_else(lacking)?)
}
