//! Loses the reply to every statement of the fleet and its client, one statement after the other,
//! repeatedly.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Result;
use runledger::__private::STATEMENTS;
use runledger::RunHandle;
use runledger_tests::check::calls::Submission;
use runledger_tests::check::fleet::Process;
use runledger_tests::check::points::POINTS;
use runledger_tests::proxy::{Fault, Proxy};
use uuid::Uuid;

use crate::load::jobs::chaos_slow;
use crate::scenario::{Scenario, Setting};
use crate::scene::{Member, Scene};
use crate::summary::Summary;

pub const ALL: &[Scenario] = &[Scenario::new(
    "acks-lost",
    "whatever statement is carried out and not acknowledged, nothing is lost, doubled or stuck",
    &["F55", "F56"],
    |setting| Box::pin(acks_lost(setting)),
)
.seconds(45)
.long()];

/// How long to wait for a statement before the next one's turn. The fault stays armed.
const TURN: Duration = Duration::from_millis(100);

/// How often a worker leaves and another starts, so that the statements of starting, stopping and
/// marking dead occur too.
const SHIFT: Duration = Duration::from_secs(4);

/// How much longer the scenario runs for writes that have not occurred yet. The client then makes
/// fewer calls, so that workers become idle.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long the sessions of a paused worker stay, with their locked rows: twice its lease.
const STOPPED: Duration = Duration::from_secs(8);

/// A paused worker, and since when.
type Stopped = (Instant, Process);

/// How a worker leaves.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// It is killed.
    Killed,
    /// It is paused, so that its sessions stay for a while.
    Stopped,
    /// A request in the database drains it.
    Drained,
    /// The operating system sends SIGTERM.
    Terminated,
}

const WAYS: [Way; 4] = [Way::Stopped, Way::Killed, Way::Drained, Way::Terminated];

/// The duration of the run that two workers crash with: longer than the time from a crash to the
/// claim after the next crash.
const LONG_RUN: Duration = Duration::from_secs(45);

/// After this many crashes the scenario spares the run, which is blocked after five.
const MOST_CRASHES: i32 = 3;

/// The duration of a run whose result the scenario awaits.
const SHORT_RUN: Duration = Duration::from_millis(400);

/// How long the scenario waits for a result.
const RESULT: Duration = Duration::from_secs(2);

async fn acks_lost(setting: Setting) -> Result<Summary> {
    let mut scene = Scene::open(&setting, 3, &[]).await?;
    let writes = writes();
    let mut known = writes.clone();
    let (mut shift, mut ways) = (Instant::now(), WAYS.into_iter().cycle());
    let mut stopped: Option<Stopped> = None;
    let mut is_slow = false;
    let mut victim = ask(&mut scene, LONG_RUN).await;
    scene.proxies().for_each(|proxy| writes.iter().for_each(|write| proxy.arm(write, Fault::LoseReply)));
    while scene.goes_on() || (!never(&scene, &writes).is_empty() && scene.elapsed() < setting.load + PATIENCE)
    {
        scene.moment(50, 50).await;
        if let Some((_, process)) = stopped.take_if(|(since, _)| since.elapsed() > STOPPED) {
            process.kill().await?;
        }
        learn(&scene, &mut known);
        for statement in &known {
            lose(&scene, statement).await;
            if shift.elapsed() > SHIFT {
                wait_for_a_result(&mut scene).await;
                let way = ways.next().unwrap_or(Way::Killed);
                let at = who_goes(&mut scene, way, &mut victim).await?;
                change_shift(&mut scene, at, way, &mut stopped).await?;
                shift = Instant::now();
            }
            if !scene.goes_on() {
                break;
            }
        }
        if !scene.goes_on() && !std::mem::replace(&mut is_slow, true) {
            scene.client.slow_down();
        }
    }
    scene.site.n_faults += scene.proxies().map(Proxy::n_faults).sum::<usize>();
    let met = met(&scene);
    let unmet: Vec<&String> = known.difference(&met).collect();
    scene.site.notes.push(format!("replies of {} statements were lost; not met: {unmet:?}", met.len()));
    let never = never(&scene, &writes);
    if !never.is_empty() {
        scene.site.violations.push(format!("no reply to these writes was lost: {never:?}"));
    }
    scene.end().await
}

/// A write that only a change from outside causes, and that the monitor would report. The failpoint
/// tests cover it.
const NOT_OF_THE_LOAD: &str = "keep_one_place";

/// How each write begins. A `COMMIT` does not show which one it is, so the failpoint tests cover
/// each commit.
fn writes() -> BTreeSet<String> {
    let is_statement =
        |point: &str| point != NOT_OF_THE_LOAD && STATEMENTS.iter().any(|(name, _)| *name == point);
    let statements = POINTS.iter().map(|(point, _)| *point).filter(|point| is_statement(point));
    statements.map(|point| format!("-- {point}:")).chain(["COMMIT".to_owned()]).collect()
}

/// The beginnings of the statements whose replies were lost.
fn met(scene: &Scene) -> BTreeSet<String> {
    scene.proxies().flat_map(Proxy::met).collect()
}

/// The writes that have not lost a reply yet.
fn never(scene: &Scene, writes: &BTreeSet<String>) -> Vec<String> {
    writes.difference(&met(scene)).cloned().collect()
}

/// Adds the statements that the fleet has sent.
fn learn(scene: &Scene, known: &mut BTreeSet<String>) {
    for proxy in scene.proxies() {
        known.extend(proxy.statements().iter().map(|line| name(line)));
        proxy.forget();
    }
}

/// The part of a statement that is the same each time.
fn name(line: &str) -> String {
    let end = match line.strip_prefix("-- ") {
        Some(comment) => comment.find(':').map(|at| at + "-- :".len()),
        None => line.find([';', '\'', '"', '=', '(']),
    };
    line[..end.unwrap_or(line.len())].to_owned()
}

/// Loses the next reply to this statement at every proxy, and waits briefly for it.
async fn lose(scene: &Scene, statement: &str) {
    let n_lost = || scene.proxies().map(Proxy::n_faults).sum::<usize>();
    let before = n_lost();
    scene.proxies().for_each(|proxy| proxy.arm(statement, Fault::LoseReply));
    let began = Instant::now();
    while n_lost() == before && began.elapsed() < TURN {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Starts a run and waits for its result. The load's client never waits for results.
async fn wait_for_a_result(scene: &mut Scene) {
    if let Some(run) = ask(scene, SHORT_RUN).await {
        // The tail checks that the run ends.
        let _ = RunHandle::attach(chaos_slow, scene.client.db(), run).result_within(RESULT).await;
    }
}

async fn ask(scene: &mut Scene, length: Duration) -> Option<Uuid> {
    let number = Uuid::now_v7();
    let millis = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    let run = chaos_slow(scene.site.place.of_call(number), millis).enqueue(scene.client.db()).await;
    let run = run.ok().map(|run| run.id());
    scene.site.asked.push(match run {
        Some(run) => Submission { call: Some(number), ..Submission::acknowledged(run) },
        None => Submission::unanswered(number),
    });
    run
}

/// Chooses the worker to stop. A crash hits the worker that executes the victim, so that the next
/// worker executes it in a trial. An orderly stop hits another worker, so that the victim's crash
/// count stays.
async fn who_goes(scene: &mut Scene, way: Way, victim: &mut Option<Uuid>) -> Result<usize> {
    let mut connection = scene.site.connect().await?;
    let lease = "select worker_id, crashes from runledger.lease where run_id = $1";
    let lease: Option<(i64, i32)> =
        sqlx::query_as(lease).bind(*victim).fetch_optional(&mut connection).await?;
    let worker = lease.map(|(worker, _)| worker);
    let is_spared = lease.is_some_and(|(_, crashes)| crashes >= MOST_CRASHES);
    let ended = "select from runledger.outcome where run_id = $1";
    if victim.is_none()
        || is_spared
        || sqlx::query(ended).bind(*victim).fetch_optional(&mut connection).await?.is_some()
    {
        *victim = ask(scene, LONG_RUN).await;
    }
    let dies = matches!(way, Way::Killed | Way::Stopped) && !is_spared;
    let fits = |member: &Member| (Some(member.process.worker_id) == worker) == dies;
    Ok(scene.crew.iter().position(fits).unwrap_or_else(|| scene.any()))
}

/// Replaces a worker with a new one behind the same proxy, where faults wait for its first
/// statements. A paused process never resumes: the fleet must detect its silence before it ends.
async fn change_shift(scene: &mut Scene, at: usize, way: Way, stopped: &mut Option<Stopped>) -> Result<()> {
    let Member { mut process, proxy } = scene.crew.swap_remove(at);
    match way {
        Way::Killed => process.kill().await?,
        Way::Stopped => {
            process.pause()?;
            if let Some((_, before)) = stopped.replace((Instant::now(), process)) {
                before.kill().await?;
            }
        }
        Way::Drained => {
            // The process also receives SIGTERM, whether or not the request arrived.
            let _ = scene.client.db().drain_worker(process.worker_id).await;
            process.terminate().await?;
        }
        Way::Terminated => drop(process.terminate().await?),
    }
    let process = scene.site.worker_at(proxy.url(), &[]).await?;
    scene.crew.push(Member { process, proxy });
    Ok(())
}

#[test]
fn statement_name_omits_variable_parts() {
    assert_eq!(name("-- claim: takes runs"), "-- claim:");
    assert_eq!(name("begin; set local runledger.body = 'ab12'"), "begin");
    assert_eq!(name("COMMIT"), "COMMIT");
    assert_eq!(name("select set_config($1, $2)"), "select set_config");
}
