//! Random faults for a given time. A failure that a seed finds becomes a scenario.

use std::time::{Duration, Instant};

use anyhow::Result;
use runledger::Db;
use runledger_tests::proxy::{Fault, Mode};

use crate::load::Canaries;
use crate::runner::say;
use crate::scenario::{Scenario, Setting};
use crate::scene::{PATIENT, Scene, end_a_session, end_lock_sessions, execute};
use crate::summary::Summary;

/// Returns the soak as a scenario. It belongs to no line of the catalogue.
#[must_use]
pub fn soak() -> Scenario {
    Scenario::new("soak", "nothing contradicts a guarantee, whatever happens when", &[], |setting| {
        Box::pin(run(setting))
    })
}

/// The interval between progress lines.
const REPORT: Duration = Duration::from_secs(10);

/// Defines an enum and a list of its variants.
macro_rules! happenings {
    ($($name:ident,)*) => {
        /// The faults, each equally likely.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Happening { $($name,)* }

        const HAPPENINGS: &[Happening] = &[$(Happening::$name,)*];
    };
}

happenings! {
    Kill,
    Stop,
    ShortPause,
    LongPause,
    Cut,
    BlackHole,
    Strand,
    Delay,
    LoseReply,
    Truncate,
    EndSession,
    EndLockSession,
    LockTable,
    ClientCut,
}

async fn run(setting: Setting) -> Result<Summary> {
    // The workers of a fleet share their timings. An odd seed selects the default timings.
    let options = if setting.seed.is_multiple_of(2) { &[] } else { PATIENT };
    let mut scene = Scene::open(&setting, setting.workers, options).await?;
    let canaries = Canaries::start(Db::connect(scene.site.url()).await?);
    let mut reported = Instant::now();
    while scene.goes_on() {
        scene.moment(100, 1500).await;
        let happening = HAPPENINGS[scene.dice.index(HAPPENINGS.len())];
        happen(&mut scene, happening).await?;
        scene.site.n_faults += 1;
        if reported.elapsed() > REPORT {
            reported = Instant::now();
            let (elapsed, n_calls) = (scene.elapsed().as_secs(), scene.client.n_calls());
            say(&format!(
                "{elapsed} s: {n_calls} calls, {} faults, last {happening:?}",
                scene.site.n_faults
            ))?;
        }
    }
    let sung = canaries.end().await?;
    scene.site.asked.extend(sung.asked);
    scene.site.violations.extend(sung.violations);
    let at =
        |part: usize| sung.took.get((sung.took.len() * part / 100).min(sung.took.len().saturating_sub(1)));
    scene.site.notes.push(format!(
        "{} canaries: half within {:.1?}, 99 of 100 within {:.1?}",
        sung.took.len(),
        at(50).copied().unwrap_or_default(),
        at(99).copied().unwrap_or_default()
    ));
    scene.end().await
}

async fn happen(scene: &mut Scene, happening: Happening) -> Result<()> {
    let at = scene.any();
    match happening {
        Happening::Kill => return scene.replace_killed(at).await,
        Happening::Stop => {
            scene.crew.swap_remove(at).process.terminate().await?;
            return scene.hire().await;
        }
        Happening::ShortPause => {
            // On a starved machine a short pause can last as long as a lease.
            scene.site.excuse(&scene.crew[at].process);
            scene.crew[at].process.pause()?;
            scene.moment(100, 2500).await;
            scene.crew[at].process.resume()?;
            scene.site.recovers(&scene.crew[at].process);
        }
        Happening::LongPause => {
            scene.site.excuse(&scene.crew[at].process);
            scene.crew[at].process.pause()?;
            scene.moment(4500, 6500).await;
            scene.crew[at].process.resume()?;
            scene.site.recovers(&scene.crew[at].process);
        }
        Happening::Cut => scene.crew[at].proxy.cut(),
        Happening::ClientCut => scene.proxy.cut(),
        Happening::BlackHole => {
            scene.site.excuse(&scene.crew[at].process);
            scene.crew[at].proxy.set(Mode::BlackHole);
            scene.moment(500, 6000).await;
            scene.crew[at].proxy.set(Mode::Pass);
            scene.site.recovers(&scene.crew[at].process);
        }
        Happening::Strand => {
            scene.site.excuse(&scene.crew[at].process);
            scene.crew[at].proxy.strand();
            scene.moment(1000, 8000).await;
            scene.crew[at].proxy.cut();
            scene.site.recovers(&scene.crew[at].process);
        }
        Happening::Delay => {
            scene.site.excuse(&scene.crew[at].process);
            let late = scene.dice.between(Duration::from_millis(5), Duration::from_millis(300));
            scene.crew[at].proxy.set(Mode::Delay(late));
            scene.moment(500, 3000).await;
            scene.crew[at].proxy.set(Mode::Pass);
            scene.site.recovers(&scene.crew[at].process);
        }
        Happening::LoseReply => lose_reply(scene),
        Happening::Truncate => {
            let n_bytes = scene.dice.index(200);
            scene.crew[at].proxy.arm("", Fault::Truncate(n_bytes));
        }
        Happening::EndSession => {
            end_a_session(&mut scene.site.connect().await?).await?;
        }
        Happening::EndLockSession => {
            end_lock_sessions(&mut scene.site.connect().await?).await?;
        }
        Happening::LockTable => {
            let table = ["run", "ready", "lease", "step", "outcome", "waiting"][scene.dice.index(6)];
            let mut connection = scene.site.connect().await?;
            execute(
                &mut connection,
                &format!("begin; lock table runledger.{table} in access exclusive mode"),
            )
            .await?;
            scene.moment(100, 2000).await;
            execute(&mut connection, "commit").await?;
        }
    }
    Ok(())
}

/// Loses the reply to a statement that was sent recently.
fn lose_reply(scene: &mut Scene) {
    let at = scene.dice.index(scene.crew.len() + 1);
    let choice = scene.dice.below(u64::MAX);
    let proxy = scene.crew.get(at).map_or(&scene.proxy, |member| &member.proxy);
    let statements = proxy.statements();
    proxy.forget();
    if let Some(statement) =
        usize::try_from(choice).ok().and_then(|n| statements.get(n % statements.len().max(1)))
    {
        proxy.arm(statement, Fault::LoseReply);
    }
}
