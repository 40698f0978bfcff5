//! Clocks that are wrong, and clocks that jump.

use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use runledger_tests::check::fleet::Process;

use crate::scenario::{Scenario, Setting};
use crate::scene::{PATIENT, reaches};
use crate::server::{Clock, Settings};
use crate::stage::Stage;
use crate::summary::Summary;

pub const ALL: &[Scenario] = &[
    Scenario::new(
        "worker-clock",
        "workers whose clocks are an hour late or early work as the others",
        &["F59"],
        |setting| Box::pin(worker_clock(setting)),
    )
    .seconds(12),
    Scenario::new(
        "server-clock",
        "nobody is taken for dead because the server's clock jumps, and a dead worker is found whatever it says",
        &["F60", "F61"],
        |setting| Box::pin(server_clock(setting)),
    )
    .seconds(25),
    Scenario::new(
        "suspended",
        "a machine that is suspended and finds another time when it wakes goes on",
        &["F62"],
        |setting| Box::pin(suspended(setting)),
    )
    .seconds(15),
];

const HOUR: i64 = 3600;

/// Longer than every worker needs to send a heartbeat.
const BEAT: Duration = Duration::from_secs(4);

/// Longer than a lease of the fleet.
const ASLEEP: Duration = Duration::from_secs(6);

async fn worker_clock(setting: Setting) -> Result<Summary> {
    let mut stage = Stage::start(&setting, Settings::new()?, 1, PATIENT).await?;
    for offset in [HOUR, -HOUR] {
        let clock = Clock::new(&setting.folder.join(format!("clock{offset}")))?;
        clock.set(offset)?;
        let mut command = stage.site.command(stage.proxy.url(), PATIENT)?;
        let worker = Process::start(command.envs(clock.environment())).await?;
        stage.site.clocks.insert(worker.pid, offset);
        stage.workers.push(worker);
        stage.site.n_faults += 1;
    }
    tokio::time::sleep(setting.load).await;
    stage.expect_nobody_buried().await?;
    // The runs of a killed worker move to the others.
    stage.workers.remove(0).kill().await?;
    stage.works().await?;
    stage.judge().await
}

async fn server_clock(setting: Setting) -> Result<Summary> {
    let mut dice = setting.dice();
    let clock = Clock::new(&setting.folder.join("server-clock"))?;
    let settings = Settings::new()?.environment(clock.environment());
    let mut stage = Stage::start(&setting, settings, 3, PATIENT).await?;
    stage.site.server_clock = vec![0, HOUR, -HOUR];
    let began = Instant::now();
    let mut jumps = [HOUR, -HOUR].into_iter().cycle();
    while began.elapsed() < setting.load {
        tokio::time::sleep(dice.between(Duration::from_secs(2), Duration::from_secs(4))).await;
        jump(&mut stage, &clock, jumps.next().unwrap_or_default()).await?;
    }
    stage.expect_nobody_buried().await?;
    // The worker dies while the clock is ahead, so that its last heartbeat then lies in the future.
    jump(&mut stage, &clock, HOUR).await?;
    let victim = stage.workers.remove(0);
    let id = victim.worker_id;
    victim.kill().await?;
    jump(&mut stage, &clock, -HOUR).await?;
    stage.buried(id).await?;
    // Makes runs due whose start or timer the clock set while it was ahead.
    jump(&mut stage, &clock, HOUR).await?;
    stage.judge().await
}

async fn suspended(setting: Setting) -> Result<Summary> {
    let mut dice = setting.dice();
    let clock = Clock::new(&setting.folder.join("server-clock"))?;
    let settings = Settings::new()?.environment(clock.environment());
    let mut stage = Stage::start(&setting, settings, 3, &[]).await?;
    let began = Instant::now();
    let mut offset = 0;
    stage.site.server_clock.push(0);
    while began.elapsed() < setting.load {
        tokio::time::sleep(dice.between(Duration::from_secs(1), Duration::from_secs(3))).await;
        let looks = stage.site.monitor.pause().await;
        for worker in &stage.workers {
            worker.pause()?;
            stage.site.excuse(worker);
        }
        offset += HOUR;
        clock.set(offset)?;
        shows(&stage, offset).await?;
        stage.site.server_clock.push(offset);
        stage.site.n_faults += 1;
        tokio::time::sleep(ASLEEP).await;
        for worker in &stage.workers {
            worker.resume()?;
            stage.site.recovers(worker);
        }
        stage.works().await?;
        // Due and requested work happens with the next heartbeats.
        tokio::time::sleep(BEAT).await;
        drop(looks);
    }
    stage.judge().await
}

/// Waits until the server's clock is `offset` seconds ahead of this machine's. Detects a clock
/// library that did not load.
async fn shows(stage: &Stage, offset: i64) -> Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let shows =
        format!("select (abs(extract(epoch from clock_timestamp()) - {now} - {offset}) < 120)::int::int8");
    reaches(&mut stage.site.connect().await?, &shows, 1).await
}

/// Sets the server's clock while the monitor is suspended, because everything is an hour late for a
/// moment.
async fn jump(stage: &mut Stage, clock: &Clock, offset: i64) -> Result<()> {
    let looks = stage.site.monitor.pause().await;
    clock.set(offset)?;
    shows(stage, offset).await?;
    stage.site.n_faults += 1;
    stage.works().await?;
    tokio::time::sleep(BEAT).await;
    drop(looks);
    Ok(())
}
