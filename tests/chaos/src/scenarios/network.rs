//! Faults of the network between the fleet and its server.

use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::Result;
use runledger_tests::proxy::{Fault, Mode};

use crate::scenario::{Scenario, Setting};
use crate::scene::{PATIENT, Scene, reaches};
use crate::summary::Summary;

pub const ALL: &[Scenario] = &[
    Scenario::new(
        "connections-cut",
        "connections that are reset at any moment cost no run and no attempt",
        &["F51"],
        |setting| Box::pin(cut(setting)),
    )
    .seconds(10),
    Scenario::new(
        "black-holes",
        "a fleet goes on after connections that do not answer, for a while or for ever",
        &["F43", "F52"],
        |setting| Box::pin(black_holes(setting)),
    )
    .seconds(24),
    Scenario::new(
        "slow-network",
        "where every message is late or trickles, work is slow and nobody is taken for dead",
        &["F53"],
        |setting| Box::pin(slow(setting)),
    )
    .seconds(20),
    Scenario::new(
        "torn-replies",
        "a reply that is cut short is an error of its connection and of nothing else",
        &["F54"],
        |setting| Box::pin(torn_replies(setting)),
    ),
];

/// Whether every run has been leased for less than 20 s, except those whose bodies execute their
/// own statements.
const NOTHING_HELD: &str = "
    select (count(*) = 0)::int::int8
    from runledger.lease
    join runledger.run using (run_id)
    where claimed_at < clock_timestamp() - interval '20 s' and job not in ('check.post', 'chaos.posting')";

async fn cut(setting: Setting) -> Result<Summary> {
    let mut scene = Scene::open(&setting, 2, PATIENT).await?;
    scene.site.may_reclaim = false;
    while scene.goes_on() {
        // Rare enough that heartbeats arrive: by the protocol, a worker without any heartbeat is
        // dead.
        scene.moment(200, 1000).await;
        let at = scene.any();
        let proxy = if scene.dice.below(3) == 0 { &scene.proxy } else { &scene.crew[at].proxy };
        scene.site.n_faults += usize::from(proxy.n_connections() > 0);
        proxy.cut();
    }
    scene.end().await
}

async fn black_holes(setting: Setting) -> Result<Summary> {
    // A body that waits without a timeout for its own statement keeps its connection until the
    // worker stops. One worker has more connections than it can lose this way.
    let mut scene = Scene::open(&setting, 3, &["--connections", "30"]).await?;
    while scene.goes_on() {
        let at = scene.any();
        // The fault may last longer than a lease. Old bodies then run at the same time as the
        // bodies of the new owners.
        scene.site.excuse(&scene.crew[at].process);
        scene.site.n_faults += 1;
        match scene.dice.below(4) {
            0 => scene.crew[at].proxy.strand(),
            1 => {
                scene.proxy.set(Mode::BlackHole);
                scene.moment(500, 3000).await;
                scene.proxy.set(Mode::Pass);
            }
            _ => {
                scene.crew[at].proxy.set(Mode::BlackHole);
                scene.moment(1000, 7000).await;
                scene.crew[at].proxy.set(Mode::Pass);
            }
        }
        scene.site.recovers(&scene.crew[at].process);
        scene.moment(300, 1500).await;
    }
    // Checked before the fleet's connections are reset.
    let mut connection = scene.site.connect().await?;
    reaches(&mut connection, NOTHING_HELD, 1).await?;
    scene.end().await
}

async fn slow(setting: Setting) -> Result<Summary> {
    let setting = Setting { rate: setting.rate.min(5), ..setting };
    let mut scene = Scene::open(&setting, 2, PATIENT).await?;
    scene.site.may_reclaim = false;
    let trickle = NonZeroU32::new(16 << 10).unwrap_or(NonZeroU32::MAX);
    let third = scene.elapsed() + setting.load / 3;
    scene.set_all(Mode::Delay(Duration::from_secs(1)));
    scene.site.n_faults += 1;
    while scene.elapsed() < third {
        scene.moment(100, 100).await;
    }
    scene.set_all(Mode::Throttle(trickle));
    scene.site.n_faults += 1;
    while scene.elapsed() < third * 2 {
        scene.moment(100, 100).await;
    }
    // A new delay every 50 to 300 ms.
    while scene.goes_on() {
        let late = scene.dice.between(Duration::from_millis(1), Duration::from_millis(800));
        scene.set_all(Mode::Delay(late));
        scene.site.n_faults += 1;
        scene.moment(50, 300).await;
    }
    scene.end().await
}

async fn torn_replies(setting: Setting) -> Result<Summary> {
    let mut scene = Scene::open(&setting, 2, PATIENT).await?;
    scene.site.may_reclaim = false;
    while scene.goes_on() {
        scene.moment(50, 400).await;
        let n_bytes = scene.dice.index(200);
        let at = scene.dice.index(scene.crew.len() + 1);
        let proxy = scene.crew.get(at).map_or(&scene.proxy, |member| &member.proxy);
        // The empty beginning matches the next statement.
        proxy.arm("", Fault::Truncate(n_bytes));
    }
    let crew = scene.crew.iter().map(|member| member.proxy.n_faults()).sum::<usize>();
    scene.site.n_faults = crew + scene.proxy.n_faults();
    scene.end().await
}
