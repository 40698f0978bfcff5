//! Every statement of the fleet and of its client is carried out without its reply, one after the other, over and over.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Result;
use runledger::__private::STATEMENTS;
use runledger_tests::check::points::POINTS;
use runledger_tests::proxy::{Fault, Proxy};

use crate::scenario::{Scenario, Setting};
use crate::scene::{Member, Scene};
use crate::summary::Summary;

/// The scenarios of this file.
pub const ALL: &[Scenario] = &[Scenario::new(
    "acks-lost",
    "whatever statement is carried out and not acknowledged, nothing is lost, doubled or stuck",
    &["F55", "F56"],
    |setting| Box::pin(acks_lost(setting)),
)
.seconds(45)
.long()];

/// Fewer statements would mean that the load is not what it was.
const FEWEST: usize = 25;

/// How long to wait for a statement before the next has its turn. The fault goes on waiting for it.
const TURN: Duration = Duration::from_millis(100);

/// How often somebody comes and goes, so that there are the statements of beginnings, ends and burials too.
const SHIFT: Duration = Duration::from_secs(4);

async fn acks_lost(setting: Setting) -> Result<Summary> {
    let mut scene = Scene::open(&setting, 3, &[]).await?;
    let mut known: BTreeSet<String> = BTreeSet::new();
    let mut shift = Instant::now();
    while scene.goes_on() {
        scene.moment(50, 50).await;
        learn(&scene, &mut known);
        for statement in &known {
            lose(&scene, statement).await;
            if shift.elapsed() > SHIFT {
                change_shift(&mut scene).await?;
                shift = Instant::now();
            }
            if !scene.goes_on() {
                break;
            }
        }
    }
    scene.site.n_faults += scene.proxies().map(Proxy::n_faults).sum::<usize>();
    let met: BTreeSet<String> = scene.proxies().flat_map(Proxy::met).collect();
    let unmet: Vec<&String> = known.difference(&met).collect();
    let n_met = met.len();
    scene.site.notes.push(format!("replies of {n_met} statements were lost; seen, and not met: {unmet:?}"));
    let is_statement = |point: &str| STATEMENTS.iter().any(|(name, _)| *name == point);
    let never: Vec<&str> = POINTS
        .iter()
        .map(|(point, _)| *point)
        .filter(|point| is_statement(point) && !met.contains(&format!("-- {point}:")))
        .collect();
    scene.site.notes.push(format!("writes that this load has not, left to the failpoints: {never:?}"));
    if n_met < FEWEST {
        scene.site.violations.push(format!("only {n_met} statements lost their replies: {met:?}"));
    }
    scene.end().await
}

/// Notes the statements that anybody has sent.
fn learn(scene: &Scene, known: &mut BTreeSet<String>) {
    for proxy in scene.proxies() {
        known.extend(proxy.statements().iter().map(|line| name(line)));
        proxy.forget();
    }
}

/// What the statement begins with that does not differ from one time to the next.
fn name(line: &str) -> String {
    let end = match line.strip_prefix("-- ") {
        Some(comment) => comment.find(':').map(|at| at + "-- :".len()),
        None => line.find([';', '\'', '"', '=', '(']),
    };
    line[..end.unwrap_or(line.len())].to_owned()
}

/// Lets the next reply to this statement be lost at every proxy, and waits a moment for it.
async fn lose(scene: &Scene, statement: &str) {
    let n_lost = || scene.proxies().map(Proxy::n_faults).sum::<usize>();
    let before = n_lost();
    scene.proxies().for_each(|proxy| proxy.arm(statement, Fault::LoseReply));
    let began = Instant::now();
    while n_lost() == before && began.elapsed() < TURN {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// One worker is killed, or asked to stop, and another begins on the same way to the server, where faults wait for its beginning.
async fn change_shift(scene: &mut Scene) -> Result<()> {
    let at = scene.any();
    let Member { mut process, proxy } = scene.crew.swap_remove(at);
    if scene.dice.below(2) == 0 {
        process.kill().await?;
    } else {
        process.terminate().await?;
    }
    let process = scene.site.worker_at(proxy.url(), &[]).await?;
    scene.crew.push(Member { process, proxy });
    Ok(())
}

#[test]
fn a_statement_is_known_by_what_does_not_change() {
    assert_eq!(name("-- claim: takes runs"), "-- claim:");
    assert_eq!(name("begin; set local runledger.body = 'ab12'"), "begin");
    assert_eq!(name("COMMIT"), "COMMIT");
    assert_eq!(name("select set_config($1, $2)"), "select set_config");
}
