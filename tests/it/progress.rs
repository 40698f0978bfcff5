//! Progress, from which a later attempt continues, and the state that a workflow publishes.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use runledger::prelude::*;
use runledger::{ClientError, FailureKind, RunState};
use runledger_tests::proxy::{Fault, Proxy};
use runledger_tests::rows::{LONG, scalar, soon, take_away, until, worker};
use runledger_tests::{Fixture, eventually};
use tokio::sync::Semaphore;

static LINES: AtomicU32 = AtomicU32::new(0);

/// Imports ten lines. The third fails once.
async fn import_lines(context: &Context, lines: &AtomicU32) -> Result<u32> {
    let first: u32 = context.last_progress().await?.unwrap_or(0);
    for line in first..10 {
        if lines.fetch_add(1, Ordering::SeqCst) == 3 {
            return Err(Error::retry_after("the line is down", Duration::from_millis(1)));
        }
        context.progress(&(line + 1)).await?;
    }
    Ok(first)
}

#[job]
async fn import(#[inject] context: &Context) -> Result<u32> {
    import_lines(context, &LINES).await
}

#[tokio::test(flavor = "multi_thread")]
async fn retried_job_continues_from_its_last_progress() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let handle = import().enqueue(&db).await.unwrap();
    assert_eq!(handle.progress::<u32>().await.unwrap(), None);
    let worker = worker(&db, jobs![import]).await;
    assert_eq!(soon(handle.result()).await.unwrap(), 3, "the second attempt began where the first stopped");
    assert_eq!(LINES.load(Ordering::SeqCst), 11);
    assert_eq!(handle.progress::<u32>().await.unwrap(), Some(10), "it survives the end of the run");
    let wrong = handle.progress::<String>().await.unwrap_err();
    assert!(matches!(wrong, ClientError::Decode { .. }), "{wrong}");
    worker.stop().await;
}

/// Records the third line as its progress, and fails for good in its first run.
#[job(max_attempts = 1)]
async fn import_or_give_up(#[inject] context: &Context) -> Result<u32> {
    match context.last_progress::<u32>().await? {
        Some(line) => Ok(line),
        None => {
            context.progress(&3_u32).await?;
            Err(Error::terminal("the line is down"))
        }
    }
}

#[workflow]
async fn import_in_a_step(wf: &Wf) -> Result<u32> {
    Ok(wf.run(import_or_give_up()).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn revived_job_keeps_its_last_progress() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![import_or_give_up]).await;
    let handle = import_or_give_up().enqueue(&db).await.unwrap();
    assert!(soon(handle.result()).await.is_err());
    let revived = handle.revive(RunState::Failed).await.unwrap();
    assert_eq!(soon(revived.result()).await.unwrap(), 3);
    assert_eq!(revived.progress::<u32>().await.unwrap(), Some(3));
    let again = handle.rerun().await.unwrap();
    assert!(soon(again.result()).await.is_err(), "a run from the start has said nothing yet");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn revived_step_keeps_its_last_progress() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![import_in_a_step, import_or_give_up]).await;
    let handle = import_in_a_step().enqueue(&db).await.unwrap();
    assert!(soon(handle.result()).await.is_err());
    let revived = handle.revive(RunState::Failed).await.unwrap();
    assert_eq!(soon(revived.result()).await.unwrap(), 3);
    worker.stop().await;
}

/// Returns the progress with which it started.
#[job]
async fn import_all(#[inject] context: &Context) -> Result<u32> {
    let first: u32 = context.last_progress().await?.unwrap_or(0);
    context.progress(&10).await?;
    Ok(first)
}

#[workflow]
async fn import_beside_a_child(wf: &Wf) -> Result<(u32, u32)> {
    let child = wf.start(import_or_give_up()).await?;
    let first = wf.run(import_all()).await?;
    Ok((first, child.result().await?))
}

#[tokio::test(flavor = "multi_thread")]
async fn forked_step_restarts_and_revived_child_continues_from_progress() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![import_beside_a_child, import_or_give_up, import_all]).await;
    let handle = import_beside_a_child().enqueue(&db).await.unwrap();
    assert!(soon(handle.result()).await.is_err());
    assert_eq!(handle.step_progress::<u32>("import_all").await.unwrap(), Some(10));
    let fork = handle.fork("import_all").await.unwrap();
    assert_eq!(soon(fork.result()).await.unwrap(), (0, 3));
    worker.stop().await;
}

static STEP_LINES: AtomicU32 = AtomicU32::new(0);

#[job]
async fn import_step(#[inject] context: &Context) -> Result<u32> {
    import_lines(context, &STEP_LINES).await
}

#[workflow]
async fn imports(wf: &Wf) -> Result<u32> {
    Ok(wf.run(import_step()).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn retried_step_continues_from_its_last_progress() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![imports, import_step]).await;
    let handle = imports().enqueue(&db).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 3);
    assert_eq!(handle.step_progress::<u32>("import_step").await.unwrap(), Some(10));
    assert_eq!(handle.progress::<u32>().await.unwrap(), None);
    worker.stop().await;
}

#[job(max_attempts = 1)]
async fn goes_on(#[inject] context: &Context) -> Result<u32> {
    let before: Option<u32> = context.last_progress().await?;
    if before.is_none() {
        context.progress(&7).await?;
        return context.continue_later(Duration::ZERO).await;
    }
    Ok(before.unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn body_retries_unanswered_progress_read_without_spending_attempt() {
    let Fixture { db, database } = Fixture::new().await;
    let proxy = Proxy::start(database.url()).await.unwrap();
    let worker = worker(&Db::connect(proxy.url()).await.unwrap(), jobs![goes_on]).await;
    proxy.arm("-- last_progress:", Fault::LoseReply);
    let handle = goes_on().enqueue(&db).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 7);
    assert_eq!(proxy.n_faults(), 1);
    worker.stop().await;
}

static STALE: Semaphore = Semaphore::const_new(0);
static ATTEMPTS: AtomicU32 = AtomicU32::new(0);

#[job]
async fn says_something_late(#[inject] context: &Context) -> Result<()> {
    let number = ATTEMPTS.fetch_add(1, Ordering::SeqCst);
    context.progress(&format!("{number} begins")).await?;
    STALE.acquire().await?.forget();
    if number == 0 {
        context.progress("an attempt that has lost its lease").await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_attempt_cannot_report_progress() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![says_something_late]).await;
    let handle = says_something_late().enqueue(&db).await.unwrap();
    let said = async || handle.progress::<String>().await.unwrap();
    eventually(said, |text| text.as_deref() == Some("0 begins")).await;
    assert!(take_away(&db, handle.id()).await);
    let fresh = runledger::App::new(db.clone()).with(jobs![says_something_late]);
    let other = fresh.timings(runledger::Timings::FAST).start().await.unwrap();
    eventually(said, |text| text.as_deref() == Some("1 begins")).await;
    STALE.add_permits(2);
    soon(handle.result()).await.unwrap();
    assert_eq!(said().await.as_deref(), Some("1 begins"));
    worker.stop().await;
    other.stop().await;
}

static SILENCES: AtomicU32 = AtomicU32::new(0);

#[job]
async fn falls_silent(#[inject] context: &Context) -> Result<u32> {
    let number = SILENCES.fetch_add(1, Ordering::SeqCst);
    context.progress(&number).await?;
    if number == 0 {
        std::future::pending::<()>().await;
    }
    Ok(number)
}

#[workflow]
async fn listens(wf: &Wf) -> Result<u32> {
    let step = wf.run(falls_silent()).backoff(Duration::from_millis(1), Duration::from_millis(1));
    Ok(step.heartbeat_timeout(Duration::from_secs(2)).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn step_without_progress_beyond_heartbeat_timeout_is_retried() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![listens, falls_silent]).await;
    let handle = listens().enqueue(&db).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 1);
    let tries = handle.attempts().await.unwrap();
    let failure = tries[0].error.clone().unwrap();
    assert_eq!((failure.kind, tries[0].step_key.as_str()), (FailureKind::Timeout, "falls_silent"));
    assert!(failure.message.contains("said nothing of its progress for 2s"), "{failure}");
    worker.stop().await;
}

static TRIES: AtomicU32 = AtomicU32::new(0);

#[job(heartbeat = "2s", backoff = "1ms..1ms")]
async fn beats(#[inject] context: &Context) -> Result<u32> {
    let number = TRIES.fetch_add(1, Ordering::SeqCst);
    context.progress(&number).await?;
    if number.is_multiple_of(2) {
        std::future::pending::<()>().await;
    }
    Ok(number)
}

#[workflow]
async fn runs_what_beats(wf: &Wf) -> Result<u32> {
    Ok(wf.run(beats()).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn job_heartbeat_timeout_applies_as_run_and_as_step() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![beats, runs_what_beats]).await;
    let run = beats().enqueue(&db).await.unwrap();
    assert_eq!(soon(run.result()).await.unwrap(), 1);
    let step = runs_what_beats().enqueue(&db).await.unwrap();
    assert_eq!(soon(step.result()).await.unwrap(), 3);
    for (run_id, key) in [(run.id(), ""), (step.id(), "beats")] {
        let tries = RunHandle::attach(beats, &db, run_id).attempts().await.unwrap();
        let failure = tries[0].error.clone().unwrap();
        assert_eq!((failure.kind, tries[0].step_key.as_str()), (FailureKind::Timeout, key));
        assert!(failure.message.contains("said nothing of its progress for 2s"), "{failure}");
    }
    worker.stop().await;
}

static PUBLISHES: Semaphore = Semaphore::const_new(0);

#[workflow]
async fn shows_its_state(wf: &Wf) -> Result<()> {
    wf.publish("status", "reserved").await?;
    wf.publish("percent", &50).await?;
    let gate = || async {
        PUBLISHES.acquire().await.map_err(Error::terminal)?.forget();
        Ok::<_, Error>(())
    };
    wf.step("gate", gate).await?;
    wf.publish("status", "paid").await?;
    Ok(wf.sleep(LONG * 60).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn published_value_is_readable_and_replay_does_not_republish_it() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![shows_its_state]).await;
    let handle = shows_its_state().enqueue(&db).await.unwrap();
    let status = async || handle.query::<String>("status").await.unwrap();
    eventually(status, |text| text.as_deref() == Some("reserved")).await;
    assert!(take_away(&db, handle.id()).await);
    PUBLISHES.add_permits(2);
    eventually(status, |text| text.as_deref() == Some("paid")).await;
    until(&db, handle.id(), |info| info.cause.as_deref() == Some("slept")).await;
    // No replay brings back the value published first.
    let written = "select count(*) from runledger.step where key like 'publish:%'";
    assert_eq!(scalar::<i64>(&db, written).await, 3);
    handle.cancel("enough").await.unwrap();
    assert_eq!(handle.state().await.unwrap(), RunState::Cancelled);
    assert_eq!(status().await.as_deref(), Some("paid"), "it survives the end of the run");
    assert_eq!(handle.query::<u32>("percent").await.unwrap(), Some(50));
    assert_eq!(handle.query::<u32>("perce").await.unwrap(), None);
    worker.stop().await;
}
