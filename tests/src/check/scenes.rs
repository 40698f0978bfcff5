//! The scenes in which a process meets a failpoint: what a program does, with a program's habits.
//! It repeats a failed call, restarts its worker, and after its death a successor begins from the
//! start. Every call has a key.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use anyhow::{Context as _, Result};
use runledger::{
    AnyCall, Call, Cancelled, ClientError, Db, Graph, Job, JobOverrides, RunHandle, RunState, Worker,
    enqueue_all,
};

use super::{Place, jobs};
use crate::eventually;

/// The name of the worker in such a process. Its successor takes over its runs at once.
pub const NAME: &str = "scene";

/// How often a call is repeated. One fault happens once.
const TRIES: u32 = 20;

/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// Longer than any test.
const HOUR: Duration = Duration::from_secs(3600);

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    /// Enqueues in every way, works, and stops.
    Work,
    /// Cancels a run with a start delay, an overdue run, and a run with a child.
    Cancel,
    /// Resumes a blocked run, and reruns it.
    Resume,
    /// Pauses a queued run, pins it to another version of its code and back, adopts a copy, sets
    /// and clears an override and a configuration of a job, drops a request that came too late, and
    /// resumes the run.
    Pause,
    /// Submits graphs in every way, revokes the links to a gate, decides it, and waits for their
    /// results.
    Graph,
    /// Asks a worker to drain.
    Drain,
    /// Takes over from a process that was killed.
    Killed,
    /// Finds a process that was paused before the commit of a transactional body.
    Paused,
    /// Executes a suspect on trial. The wait of its workflow for a child then times out.
    Timer,
    /// Repairs a run in two places, and one with a lost wake-up.
    Mended,
    /// Creates the schema.
    Migrate,
}

/// Every scene.
pub const SCENES: [Scene; 11] = [
    Scene::Work,
    Scene::Cancel,
    Scene::Resume,
    Scene::Pause,
    Scene::Graph,
    Scene::Drain,
    Scene::Killed,
    Scene::Paused,
    Scene::Timer,
    Scene::Mended,
    Scene::Migrate,
];

impl Scene {
    /// Plays the scene, from the start or from where the predecessor died.
    ///
    /// # Errors
    /// If a call fails again and again, or if a run ends in the wrong way.
    pub async fn play(self, url: &str, place: &Place) -> Result<()> {
        let db = again(async || Db::connect(url).await).await?;
        match self {
            Self::Work => work(&db, place).await?,
            Self::Cancel => cancel(&db, place).await?,
            Self::Resume => resume(&db, place).await?,
            Self::Pause => pause(&db, place).await?,
            Self::Graph => graph(&db).await?,
            Self::Drain => drain(&db).await?,
            Self::Killed => finish(&db, || jobs::check_steps(place.clone())).await?,
            Self::Paused => finish(&db, || jobs::check_post(place.clone())).await?,
            Self::Timer => timer(&db, place).await?,
            Self::Mended => mended(&db, place).await?,
            Self::Migrate => finish(&db, jobs::check_canary).await?,
        }
        // A fault that was to hit the next write hits this one, if there was no other.
        keyed(&db, "last", jobs::check_canary).await.map(drop)
    }
}

async fn work(db: &Db, place: &Place) -> Result<()> {
    let writes = keyed(db, "writes", || jobs::check_writes(place.clone())).await?;
    let batch = again(async || {
        let quick: AnyCall = jobs::check_quick(place.clone()).idempotency_key("quick").into();
        let post: AnyCall = jobs::check_post(place.clone()).idempotency_key("post").into();
        enqueue_all([quick, post], db).await
    });
    let batch = batch.await?;
    let flaky =
        again(async || jobs::check_flaky(place.clone()).idempotency_key("flaky").enqueue(db.pool()).await);
    let flaky = flaky.await?;
    let canary = again(async || jobs::check_canary().enqueue(db).await).await?;
    let signalled = keyed(db, "signalled", || jobs::check_signalled(place.clone())).await?;
    let continued = keyed(db, "continued", || jobs::check_continued(place.clone(), 0)).await?;
    let worker = start(db).await?;
    for value in 0..3_u32 {
        // If the run has ended, an earlier try sent the signal.
        again(async || match signalled.signal("value", &value).idempotency_key(value.to_string()).await {
            Err(ClientError::WrongState { state: RunState::Completed, .. }) => Ok(()),
            sent => sent.map(drop),
        })
        .await?;
    }
    let values = again(async || signalled.result().await).await?;
    anyhow::ensure!(values == [0, 1, 2], "{values:?}");
    anyhow::ensure!(again(async || continued.result().await).await? == 2, "three slices");
    again(async || canary.result().await).await?;
    again(async || flaky.result().await).await?;
    for run in &batch {
        let ended = async || db.run(run.run_id).info().await.ok().map(|info| info.state);
        eventually(ended, |state| *state == Some(RunState::Completed)).await;
    }
    again(async || writes.result().await).await?;
    worker.stop().await;
    Ok(())
}

async fn cancel(db: &Db, place: &Place) -> Result<()> {
    let later = keyed(db, "later", || jobs::check_gated(place.clone()).delay(HOUR)).await?;
    again(async || later.cancel("on purpose").await).await?;
    let limited = || jobs::check_gated(place.clone()).delay(HOUR);
    let limited = keyed(db, "limited", || limited().deadline(Duration::ZERO)).await?;
    // Simulates the passing of the hour.
    let pass = "with past as (update runledger.deadline set deadline_at = now() returning run_id)
                update runledger.run set start_at = now() - interval '1 second' where run_id in (select run_id from past)";
    again(async || sqlx::query(pass).execute(db.pool()).await).await?;
    let worker = start(db).await?;
    let ended = async || limited.state().await.ok();
    eventually(ended, |state| *state == Some(RunState::Cancelled)).await;
    let left = "select count(*) from runledger.deadline";
    let n_left = async || sqlx::query_scalar::<_, i64>(left).fetch_one(db.pool()).await.ok();
    eventually(n_left, |n| *n == Some(0)).await;
    overdue_while_locked(db, place).await?;
    let parent = keyed(db, "parent", || jobs::check_parent(place.clone())).await?;
    let state = async || parent.state().await.ok();
    let waits = |state: &Option<RunState>| matches!(state, Some(RunState::Waiting | RunState::Cancelled));
    eventually(state, waits).await;
    let cancelled = again(async || parent.cancel("on purpose").await).await?;
    anyhow::ensure!(cancelled != Cancelled::Requested, "nobody held it");
    // No one decides its gate, so unclaimed nodes remain.
    let graph = again(async || {
        let mut graph = Graph::new("check.cancelled").idempotency_key("cancelled");
        let gate = graph.gate::<u64>("gate");
        graph.then(jobs::check_sum, (vec![gate],));
        graph.enqueue(db).await
    })
    .await?;
    again(async || graph.cancel("on purpose").await).await?;
    worker.stop().await;
    // A worker first carries out the requests that were left.
    let worker = start(db).await?;
    let left = "select count(*) from runledger.cancel";
    let n_left = async || sqlx::query_scalar::<_, i64>(left).fetch_one(db.pool()).await.ok();
    eventually(n_left, |n| *n == Some(0)).await;
    worker.stop().await;
    Ok(())
}

async fn resume(db: &Db, place: &Place) -> Result<()> {
    let run = keyed(db, "blocked", || jobs::check_quick(place.clone())).await?;
    again(async || unless_wrong(run.resume().await)).await?;
    let worker = start(db).await?;
    again(async || run.result().await).await?;
    let another = again(async || run.rerun().await).await?;
    again(async || another.result().await).await?;
    worker.stop().await;
    Ok(())
}

async fn pause(db: &Db, place: &Place) -> Result<()> {
    let run = keyed(db, "run", || jobs::check_quick(place.clone())).await?;
    again(async || unless_wrong(run.pause("on purpose").await)).await?;
    for version in [2, 1] {
        again(async || unless_wrong(run.pin(version).await)).await?;
    }
    again(async || db.set_overrides("check.canary", JobOverrides::new().disabled("on purpose")).await)
        .await?;
    again(async || db.set_job_config("check.canary", 1, &BTreeMap::from([("answer", 42)])).await).await?;
    // Simulates tables that were copied from another database.
    let moved = "update runledger.installation set database = 0";
    again(async || sqlx::query(moved).execute(db.pool()).await).await?;
    again(async || db.adopt().await).await?;
    let worker = start(db).await?;
    again(async || db.clear_overrides("check.canary").await).await?;
    again(async || db.delete_job_config("check.canary", 1).await).await?;
    // Simulates a request that reached the worker too late.
    let canary = keyed(db, "ended", jobs::check_canary).await?;
    again(async || canary.result().await).await?;
    again(async || db.set_permits("check", 1).await).await?;
    for key in ["permitted", "after it"] {
        let permitted = keyed(db, key, || jobs::check_canary().resource("check")).await?;
        again(async || permitted.result().await).await?;
    }
    let late = "insert into runledger.pause (run_id, reason) values ($1, 'too late') on conflict do nothing";
    again(async || sqlx::query(late).bind(canary.id()).execute(db.pool()).await).await?;
    let left = "select count(*) from runledger.pause";
    let n_left = async || sqlx::query_scalar::<_, i64>(left).fetch_one(db.pool()).await.ok();
    eventually(n_left, |n| *n == Some(0)).await;
    again(async || unless_wrong(run.resume().await)).await?;
    again(async || run.result().await).await?;
    worker.stop().await;
    Ok(())
}

/// Treats the failure of a run as success.
fn fails<T>(ended: std::result::Result<T, ClientError>) -> std::result::Result<(), ClientError> {
    match ended {
        Ok(_) | Err(ClientError::RunFailed { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Treats a wrong state as success: an earlier try has done the work.
fn unless_wrong<T>(done: std::result::Result<T, ClientError>) -> std::result::Result<(), ClientError> {
    match done {
        Ok(_) | Err(ClientError::WrongState { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn graph(db: &Db) -> Result<()> {
    let declared = |key: &str| {
        let mut graph = Graph::new("check.graph");
        let one = graph.call(jobs::check_sum(vec![1]));
        let gate = graph.gate::<u64>("gate");
        let both = graph.then(jobs::check_sum, (vec![one, gate],));
        let all = graph.then(jobs::check_sum, (vec![one, both],));
        graph.result(all).idempotency_key(key).active_key(key)
    };
    let ours = again(async || declared("ours").enqueue(db).await).await?;
    again(async || {
        let mut more = Graph::new("check.graph");
        let gate = more.existing_node::<u64>("gate");
        let sum = more.then(jobs::check_sum, (vec![gate],));
        more.configure(sum).name("more");
        ours.extend_from("gate").append("more", more).await
    })
    .await?;
    let theirs = again(async || declared("theirs").enqueue(db.pool()).await).await?.with_db(db);
    let worker = start(db).await?;
    again(async || ours.gate("gate").revoke_links().await).await?;
    for handle in [&ours, &theirs] {
        again(async || handle.gate("gate").complete(&2_u64).await).await?;
    }
    for handle in [&ours, &theirs] {
        let sum = again(async || handle.result().await).await?;
        anyhow::ensure!(sum == 4, "{sum}");
    }
    let summing = keyed(db, "summing", jobs::check_summing).await?;
    let sum = again(async || summing.result().await).await?;
    anyhow::ensure!(sum == 10, "{sum}");
    let failed = keyed(db, "hopeless", jobs::check_hopeless).await?;
    again(async || fails(failed.result().await)).await?;
    let revived = again(async || failed.revive(RunState::Failed).await).await?;
    again(async || fails(revived.result().await)).await?;
    worker.stop().await;
    Ok(())
}

async fn drain(db: &Db) -> Result<()> {
    let mut worker = start(db).await?;
    let worker_id = worker.id();
    again(async || db.drain_worker(worker_id).await).await?;
    worker.ended().await;
    finish(db, jobs::check_canary).await
}

async fn timer(db: &Db, place: &Place) -> Result<()> {
    let run = keyed(db, "run", || jobs::check_timer(place.clone())).await?;
    // Simulates two crashes: the worker executes the run on trial.
    let suspect = "with waiting as (update runledger.waiting set crashes = 2 where run_id = $1)
                   update runledger.ready set crashes = 2 where run_id = $1";
    again(async || sqlx::query(suspect).bind(run.id()).execute(db.pool()).await).await?;
    let worker = start(db).await?;
    let was_first = again(async || run.result().await).await?;
    anyhow::ensure!(!was_first, "the child ended at a closed gate");
    place.open("all")?;
    worker.stop().await;
    Ok(())
}

async fn mended(db: &Db, place: &Place) -> Result<()> {
    let doubled = keyed(db, "doubled", || jobs::check_canary().delay(HOUR)).await?;
    let also_waits = "insert into runledger.waiting (run_id, state, wait_any, wait_all, wait_signals, wake_at, attempt, crashes, claims, since)
                      select run_id, 'waiting', '{}', '{}', '{}', now(), 0, 0, 0, now() from runledger.ready where run_id = $1
                      on conflict do nothing";
    again(async || sqlx::query(also_waits).bind(doubled.id()).execute(db.pool()).await).await?;
    let parent = keyed(db, "parent", || jobs::check_parent(place.clone())).await?;
    let worker = start(db).await?;
    let state = async || parent.state().await.ok();
    let waits = |state: &Option<RunState>| matches!(state, Some(RunState::Waiting | RunState::Completed));
    eventually(state, waits).await;
    let deafen = "update runledger.waiting set wait_any = array[run_id] where run_id = $1";
    again(async || sqlx::query(deafen).bind(parent.id()).execute(db.pool()).await).await?;
    place.open("all")?;
    let n_ended =
        "select count(*) from runledger.outcome join runledger.run using (run_id) where parent_id = $1";
    let n_ended =
        async || sqlx::query_scalar::<_, i64>(n_ended).bind(parent.id()).fetch_one(db.pool()).await.ok();
    eventually(n_ended, |n| *n == Some(1)).await;
    let strand = "update runledger.waiting
                  set wait_any = array(select run_id from runledger.run where parent_id = $1), since = now() - interval '1 minute'
                  where run_id = $1";
    again(async || sqlx::query(strand).bind(parent.id()).execute(db.pool()).await).await?;
    again(async || parent.result().await).await?;
    let left = "select count(*) from runledger.waiting";
    let n_left = async || sqlx::query_scalar::<_, i64>(left).fetch_one(db.pool()).await.ok();
    eventually(n_left, |n| *n == Some(0)).await;
    // Simulates the passing of the hour.
    let pass = "update runledger.ready set ready_at = now() where run_id = $1";
    again(async || sqlx::query(pass).bind(doubled.id()).execute(db.pool()).await).await?;
    again(async || doubled.result().await).await?;
    worker.stop().await;
    Ok(())
}

/// The deadline of a run passes while another transaction has the run locked.
async fn overdue_while_locked(db: &Db, place: &Place) -> Result<()> {
    let overdue = || jobs::check_gated(place.clone()).delay(HOUR).deadline(Duration::ZERO);
    let overdue = keyed(db, "overdue", overdue).await?;
    let mut tx = again(async || db.pool().begin().await).await?;
    let lock = "update runledger.run set start_at = now() - interval '1 second'
                where run_id = $1 and not exists (select from runledger.outcome where outcome.run_id = run.run_id)";
    sqlx::query(lock).bind(overdue.id()).execute(&mut *tx).await?;
    let pass = "update runledger.deadline set deadline_at = now() where run_id = $1";
    again(async || sqlx::query(pass).bind(overdue.id()).execute(db.pool()).await).await?;
    let asked = "select (select count(*) from runledger.cancel where run_id = $1)
                 + (select count(*) from runledger.outcome where run_id = $1)";
    let n_asked =
        async || sqlx::query_scalar::<_, i64>(asked).bind(overdue.id()).fetch_one(db.pool()).await.ok();
    eventually(n_asked, |n| *n > Some(0)).await;
    tx.commit().await?;
    eventually(async || overdue.state().await.ok(), |state| *state == Some(RunState::Cancelled)).await;
    Ok(())
}

/// Works until a run has ended.
async fn finish<J: Job>(db: &Db, call: impl Fn() -> Call<J>) -> Result<()> {
    let run = keyed(db, "run", call).await?;
    let worker = start(db).await?;
    again(async || run.result().await.map(drop)).await?;
    worker.stop().await;
    Ok(())
}

/// Returns the run with this key, which a predecessor may have enqueued.
async fn keyed<J: Job>(db: &Db, key: &str, call: impl Fn() -> Call<J>) -> Result<RunHandle<J::Output>> {
    again(async || call().idempotency_key(key).enqueue(db).await).await
}

async fn start(db: &Db) -> Result<Worker> {
    again(async || jobs::app(db).name(NAME).keep_logs(tracing::Level::INFO).start().await).await
}

/// Repeats a call until it succeeds.
async fn again<T, E: Display>(call: impl AsyncFn() -> Result<T, E>) -> Result<T> {
    let mut last = String::new();
    for _ in 0..TRIES {
        match call().await {
            Ok(done) => return Ok(done),
            Err(error) => last = error.to_string(),
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(anyhow::Error::msg(last)).context("a call fails again and again")
}
