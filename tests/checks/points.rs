//! Every write of the engine that commits, with every fault: before it, after it, and with a lost
//! acknowledgement. No run is lost, stuck or executed twice, and a successor continues after a
//! death.
//!
//! A separate process meets the fault. After its death another plays the same scene from the start.
//! At the end a new worker must find nothing wrong.

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use runledger::__private::MIGRATIONS;
use runledger::__private::failpoints::Action;
use runledger::RunState;
use runledger_tests::check::fleet::Process;
use runledger_tests::check::points::{Case, all};
use runledger_tests::check::scenes::{NAME, Scene};
use runledger_tests::check::{Fleet, Place, Violations, calls, jobs};
use runledger_tests::testing_db::TestDb;
use runledger_tests::{PATIENCE, eventually};
use rustix::process::Signal;
use sqlx::{Connection, PgConnection};
use tokio::process::Command;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::{self, JoinSet};

use super::{SCENE, WORKER};

/// The number of concurrent cases. Each mostly waits.
const AT_ONCE: usize = 6;

/// Counts the sessions that have settled a run without committing.
const UNCOMMITTED: &str = "select count(*) from pg_stat_activity
    where datname = current_database() and state = 'idle in transaction' and query like '-- settle:%'";

/// Findings that [`Scene::Mended`] itself causes.
const BROUGHT_ABOUT: [&str; 2] = ["stands in: ready, waiting", "waits for nothing that is still to come"];

/// Selects the cases whose line (`claim Lost Error`) contains this text.
const CHOICE: &str = "RUNLEDGER_TEST_POINTS";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn every_write_survives_every_fault() -> Result<()> {
    let choice = env::var(CHOICE).unwrap_or_default();
    let cases: Vec<Case> = all().filter(|case| case.arguments().join(" ").contains(&choice)).collect();
    ensure!(!cases.is_empty(), "no case has `{choice}` in its line");
    survive(cases).await
}

#[expect(clippy::print_stdout, reason = "a matrix of minutes says how far it is")]
async fn survive(cases: Vec<Case>) -> Result<()> {
    let (room, mut running) = (Arc::new(Semaphore::new(AT_ONCE)), JoinSet::new());
    for case in cases {
        let room = Arc::clone(&room);
        running.spawn(async move {
            let _room = room.acquire().await;
            let began = Instant::now();
            // On its own thread: a panic of `eventually` is a violation of this case only.
            let met = task::spawn_blocking(move || Handle::current().block_on(met(case)));
            let violations = match met.await {
                Ok(Ok(violations)) => violations,
                Ok(Err(error)) => vec![format!("{error:#}")],
                Err(panic) => vec![panic.to_string()],
            };
            let line = case.arguments().join(" ");
            println!("{:>6.1} s  {line}", began.elapsed().as_secs_f64());
            violations.into_iter().map(move |violation| format!("{line}: {violation}")).collect::<Vec<_>>()
        });
    }
    let violations: Violations = running.join_all().await.into_iter().flatten().collect();
    assert!(violations.is_empty(), "{}", violations.join("\n"));
    Ok(())
}

/// Returns everything that is wrong after a case.
async fn met(case: Case) -> Result<Violations> {
    if case.scene == Scene::Migrate {
        return migrated(case).await;
    }
    let fleet = Fleet::new().await?;
    let victim = prepare(&fleet, case.scene).await?;
    play(fleet.url(), &fleet.place, case).await?;
    fleet.place.open("all")?;
    let survivor = fleet.worker(fleet.url()).await?;
    jobs::check_canary().enqueue(&fleet.db).await?.result_within(PATIENCE).await?;
    fleet.drained().await?;
    let requests = || async { count(&fleet, "select count(*) from runledger.cancel").await };
    eventually(requests, |n| *n == Some(0)).await;
    survivor.stop().await;
    let mut violations = ends(&fleet, case).await?;
    violations.extend(calls::doubled_keys(&mut fleet.connect().await?, &[]).await?);
    let paused: Vec<u32> = victim.iter().map(|victim| victim.pid).collect();
    drop(victim);
    let mut verdict = fleet.verdict(&paused).await?;
    if case.scene == Scene::Mended {
        verdict.retain(|violation| !BROUGHT_ABOUT.iter().any(|text| violation.contains(text)));
    }
    violations.extend(verdict);
    Ok(violations)
}

/// Prepares what the scene finds. Returns a paused process, if the scene needs one, to be killed
/// later.
async fn prepare(fleet: &Fleet, scene: Scene) -> Result<Option<Process>> {
    match scene {
        Scene::Cancel | Scene::Migrate | Scene::Graph | Scene::Mended => {}
        Scene::Work | Scene::Drain | Scene::Pause => fleet.place.open("all")?,
        Scene::Resume => {
            let run = jobs::check_quick(fleet.place.clone()).idempotency_key("blocked");
            block(fleet, run.enqueue(&fleet.db).await?.id()).await?;
        }
        Scene::Timer => {
            let run =
                jobs::check_timer(fleet.place.clone()).idempotency_key("run").enqueue(&fleet.db).await?;
            let worker = fleet.process_with(WORKER, &[NAME]).await?;
            eventually(|| async { run.state().await.ok() }, |state| *state == Some(RunState::Waiting)).await;
            worker.kill().await?;
        }
        Scene::Killed => {
            let run = jobs::check_steps(fleet.place.clone()).idempotency_key("run");
            let run = run.enqueue(&fleet.db).await?;
            let victim = fleet.process_with(WORKER, &[NAME]).await?;
            fleet.started(run.id(), 2).await?;
            victim.kill().await?;
            fleet.place.open("all")?;
        }
        Scene::Paused => {
            fleet.place.open("all")?;
            jobs::check_post(fleet.place.clone()).idempotency_key("run").enqueue(&fleet.db).await?;
            let victim = fleet.process_with(WORKER, &[NAME, "body", "Before", "Wait"]).await?;
            eventually(|| async { count(fleet, UNCOMMITTED).await }, |n| *n == Some(1)).await;
            victim.pause()?;
            silence(fleet, victim.worker_id).await?;
            return Ok(Some(victim));
        }
    }
    Ok(None)
}

/// Plays the scene with the fault. If the fault kills the process, another plays it again.
async fn play(url: &str, place: &Place, case: Case) -> Result<()> {
    let first = scene(url, place, case.scene, &case.arguments()).await?;
    if case.action != Action::Abort {
        return said(&first, "hits 1\n");
    }
    let signal = first.status.signal();
    ensure!(signal == Some(Signal::ABORT.as_raw()), "it did not die of the fault: {}", told(&first));
    let second = scene(url, place, case.scene, &[]).await?;
    said(&second, "hits 0\n")
}

async fn scene(url: &str, place: &Place, scene: Scene, fault: &[String]) -> Result<Output> {
    let child = Command::new(SCENE)
        .args([url, &format!("{scene:?}"), &serde_json::to_string(place)?])
        .args(fault)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let ended = tokio::time::timeout(2 * PATIENCE, child.wait_with_output()).await;
    Ok(ended.context("the scene does not end")??)
}

fn said(output: &Output, what: &str) -> Result<()> {
    if output.status.success() && output.stdout == what.as_bytes() {
        return Ok(());
    }
    bail!("not `{}`: {}", what.trim_end(), told(output))
}

fn told(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}, {:?}\n{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// Finds runs with the wrong end for their scene, and calls that created two runs.
async fn ends(fleet: &Fleet, case: Case) -> Result<Violations> {
    let wanted = if case.scene == Scene::Cancel { "cancelled" } else { "completed" };
    let mut violations: Violations = sqlx::query_scalar(
        "select format('run %s of `%s` is %s: %s', run_id, job, state, error)
        from runledger.run_state
        where state <> case
            when job = 'check.canary' then 'completed'
            when job in ('check.hopeless', 'check.refuses') or graph = 'check.hopes' then 'failed'
            else $1
        end",
    )
    .bind(wanted)
    .fetch_all(fleet.db.pool())
    .await?;
    // Each process that gets this far enqueues one canary without a key, and this test enqueues
    // one.
    let unkeyed = "select count(*) from runledger.run where job = 'check.canary' and idempotency_key is null";
    let n_unkeyed = count(fleet, unkeyed).await.context("the canaries cannot be counted")?;
    let most = match (case.scene, case.action) {
        (Scene::Work, Action::Abort) => 3,
        (Scene::Work, _) => 2,
        _ => 1,
    };
    if n_unkeyed > most {
        violations.push(format!("{n_unkeyed} canaries of {most} calls"));
    }
    Ok(violations)
}

/// The case of the schema itself, before which there is nothing to watch.
async fn migrated(case: Case) -> Result<Violations> {
    let database = TestDb::new("an empty database", async |_: &str| Ok::<(), sqlx::Error>(())).await;
    let place = Place::new()?;
    play(database.url(), &place, case).await?;
    let mut connection = PgConnection::connect(database.url()).await?;
    let applied: Vec<i32> = sqlx::query_scalar("select version from runledger.migration order by version")
        .fetch_all(&mut connection)
        .await?;
    let known: Vec<i32> = MIGRATIONS.iter().map(|migration| migration.version).collect();
    let ended = "select count(*) from runledger.run_state where state = 'completed'";
    let n_ended: i64 = sqlx::query_scalar(ended).fetch_one(&mut connection).await?;
    let mut violations = Violations::new();
    if applied != known || n_ended != 1 {
        violations.push(format!("migrations {applied:?} of {known:?} and {n_ended} runs"));
    }
    Ok(violations)
}

/// Blocks a queued run, as a divergence does.
async fn block(fleet: &Fleet, run_id: uuid::Uuid) -> Result<()> {
    sqlx::query(
        "with taken as (delete from runledger.ready where run_id = $1 returning run_id)
        insert into runledger.waiting (run_id, state, error, attempt, crashes, claims, since)
        select run_id, 'blocked', '{}', 0, 0, 1, now() from taken",
    )
    .bind(run_id)
    .execute(fleet.db.pool())
    .await?;
    Ok(())
}

/// Makes a worker look silent for longer than its lease.
async fn silence(fleet: &Fleet, worker_id: i64) -> Result<()> {
    sqlx::query(
        "update runledger.worker set heartbeat_at = now() - interval '1 minute' where worker_id = $1",
    )
    .bind(worker_id)
    .execute(fleet.db.pool())
    .await?;
    Ok(())
}

async fn count(fleet: &Fleet, query: &'static str) -> Option<i64> {
    sqlx::query_scalar(query).fetch_one(fleet.db.pool()).await.ok()
}
