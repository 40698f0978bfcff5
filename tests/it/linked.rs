//! Behaviours 43 and 44: rerun, revive and fork create new runs that are linked to the old one.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use runledger::prelude::*;
use runledger::{ClientError, RunState};
use runledger_tests::rows::{scalar, soon, until, worker};
use runledger_tests::{Fixture, eventually};
use tokio::sync::{Semaphore, SemaphorePermit};
use uuid::Uuid;

use crate::children::{child_of, child_that_sleeps};

#[job]
async fn doubles(n: u64) -> Result<u64> {
    Ok(n * 2)
}

#[tokio::test(flavor = "multi_thread")]
async fn completed_run_can_be_rerun_as_new_linked_run() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let call = doubles(4).idempotency_key("four").tenant("acme").priority(3).queue("other").max_attempts(2);
    let handle = call.enqueue(&db).await.unwrap();
    let early = handle.rerun().await.unwrap_err();
    assert!(matches!(early, ClientError::WrongState { state: RunState::Queued, .. }), "{early}");
    let app = App::new(db.clone()).with(jobs![doubles]).queues(["other"]);
    let worker = app.start().await.unwrap();
    soon(handle.result()).await.unwrap();
    let again = handle.rerun().await.unwrap();
    assert!(again.created());
    assert_eq!(soon(again.result()).await.unwrap(), 8);
    let (info, before) = (again.info().await.unwrap(), handle.info().await.unwrap());
    assert_eq!((info.origin_id, before.origin_id), (Some(handle.id()), None));
    assert_eq!((info.idempotency_key, info.tenant, info.priority), (None, before.tenant, before.priority));
    assert_eq!(info.queue, before.queue);
    let same = "select count(distinct options::text) from runledger.run where options is not null";
    assert_eq!(scalar::<i64>(&db, same).await, 1);
    assert_ne!(handle.rerun().await.unwrap().id(), again.id(), "each time another");
    worker.stop().await;
}

static TRIES: [AtomicU32; 3] = [const { AtomicU32::new(0) }; 3];

#[workflow]
async fn counts_its_steps(wf: &Wf) -> Result<Vec<u32>> {
    let mut seen = Vec::new();
    for (name, tries) in ["one", "two", "three"].into_iter().zip(&TRIES) {
        seen.push(wf.step(name, || async { Ok::<_, Error>(tries.fetch_add(1, Ordering::SeqCst)) }).await?);
    }
    Ok(seen)
}

#[tokio::test(flavor = "multi_thread")]
async fn workflow_can_be_forked_from_any_recorded_step() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![counts_its_steps]).await;
    let handle = counts_its_steps().enqueue(&db).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), [0, 0, 0]);
    for (step, expected) in [("three", [0, 0, 1]), ("two", [0, 1, 2]), ("one", [1, 2, 3])] {
        let fork = handle.fork(step).await.unwrap();
        assert_eq!(soon(fork.result()).await.unwrap(), expected, "from `{step}`");
        assert_eq!(fork.info().await.unwrap().origin_id, Some(handle.id()));
        let of_fork = handle.fork(step).await.unwrap();
        assert_ne!(of_fork.id(), fork.id());
        of_fork.cancel("not needed").await.unwrap();
        eventually(async || of_fork.state().await.unwrap(), |state| state.is_terminal()).await;
        TRIES.iter().zip(expected).for_each(|(tries, value)| tries.store(value + 1, Ordering::SeqCst));
    }
    let steps = handle.steps().await.unwrap();
    assert!(
        steps.iter().all(|step| step.result.as_deref() == Ok("0")),
        "the old run is as it was: {steps:?}"
    );
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fork_from_unrecorded_step_is_refused_with_suggestion() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let handle = counts_quietly().enqueue(&db).await.unwrap();
    let none = handle.fork("reserve").await.unwrap_err().to_string();
    assert!(none.contains("no recorded step `reserve`; it has none at all"), "{none}");
    let worker = worker(&db, jobs![counts_quietly]).await;
    soon(handle.result()).await.unwrap();
    let near = handle.fork("resreve").await.unwrap_err().to_string();
    assert!(near.contains("did you mean `reserve`?"), "{near}");
    let far = handle.fork("nothing like it").await.unwrap_err().to_string();
    assert!(far.contains("it has `reserve`, `charge`"), "{far}");
    worker.stop().await;
}

#[workflow]
async fn counts_quietly(wf: &Wf) -> Result<()> {
    wf.step("reserve", || async { Ok::<_, Error>(()) }).await?;
    Ok(wf.step("charge", || async { Ok::<_, Error>(()) }).await?)
}

static REPAIRED: AtomicBool = AtomicBool::new(false);
static RESERVED: AtomicU32 = AtomicU32::new(0);

#[workflow]
async fn fails_until_repaired(wf: &Wf) -> Result<u32> {
    let n = wf.step("reserve", || async { Ok::<_, Error>(RESERVED.fetch_add(1, Ordering::SeqCst)) }).await?;
    let charge =
        || async { if REPAIRED.load(Ordering::SeqCst) { Ok(()) } else { Err(Error::terminal("declined")) } };
    wf.step("charge", charge).max_attempts(1).await?;
    Ok(n)
}

#[tokio::test(flavor = "multi_thread")]
async fn revive_of_failed_run_checks_expected_state_and_happens_once() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![fails_until_repaired]).await;
    let handle = fails_until_repaired().max_attempts(1).enqueue(&db).await.unwrap();
    assert!(matches!(soon(handle.result()).await, Err(ClientError::RunFailed { .. })));
    let wrong = handle.revive(RunState::Cancelled).await.unwrap_err();
    assert!(matches!(wrong, ClientError::WrongState { state: RunState::Failed, .. }), "{wrong}");
    REPAIRED.store(true, Ordering::SeqCst);
    let (one, two) = tokio::join!(handle.revive(RunState::Failed), handle.revive(RunState::Failed));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(one.id(), two.id());
    assert_ne!(one.created(), two.created(), "it was made once");
    assert_eq!(soon(one.result()).await.unwrap(), 0, "what was recorded is kept");
    assert_eq!(RESERVED.load(Ordering::SeqCst), 1);
    assert_eq!(handle.state().await.unwrap(), RunState::Failed, "an end never changes");
    assert!(!handle.revive(RunState::Failed).await.unwrap().created());
    let ended = one.revive(RunState::Completed).await.unwrap_err();
    assert!(matches!(ended, ClientError::WrongState { state: RunState::Completed, .. }), "{ended}");
    worker.stop().await;
}

static REPAIRED_CHILD: AtomicBool = AtomicBool::new(false);
static PREPARED: AtomicU32 = AtomicU32::new(0);

#[workflow]
async fn child_that_fails(wf: &Wf) -> Result<u32> {
    let n = wf.step("prepare", || async { Ok::<_, Error>(PREPARED.fetch_add(1, Ordering::SeqCst)) }).await?;
    if REPAIRED_CHILD.load(Ordering::SeqCst) { Ok(n) } else { Err(Error::terminal("not yet")) }
}

#[workflow]
async fn parent_of_one_that_fails(wf: &Wf) -> Result<u32> {
    let fails = wf.start(child_that_fails().max_attempts(1)).await?;
    let works = wf.start(doubles(5)).await?;
    assert_eq!(works.result().await?, 10);
    Ok(fails.result().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_child_is_revived_with_its_parent() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![parent_of_one_that_fails, child_that_fails, doubles]).await;
    let handle = parent_of_one_that_fails().max_attempts(1).enqueue(&db).await.unwrap();
    assert!(matches!(soon(handle.result()).await, Err(ClientError::RunFailed { .. })));
    REPAIRED_CHILD.store(true, Ordering::SeqCst);
    let revived = handle.revive(RunState::Failed).await.unwrap();
    assert_eq!(soon(revived.result()).await.unwrap(), 0);
    assert_eq!(PREPARED.load(Ordering::SeqCst), 1, "the child keeps its steps too");
    let children = format!("select count(*) from runledger.run where parent_id = '{}'", revived.id());
    assert_eq!(scalar::<i64>(&db, &children).await, 1, "the one that completed is not started again");
    worker.stop().await;
}

static OUTLIVES: Semaphore = Semaphore::const_new(0);

#[job]
async fn outlives_its_cancel() -> Result<()> {
    tokio::task::block_in_place(|| {
        tokio::runtime::Handle::current()
            .block_on(async { OUTLIVES.acquire().await.map(SemaphorePermit::forget) })
    })?;
    Ok(())
}

#[workflow]
async fn parent_of_one_that_outlives(wf: &Wf) -> Result<()> {
    Ok(wf.start(outlives_its_cancel()).await?.result().await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cancelled_run_is_revived_only_after_descendants_stop() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![parent_of_one_that_outlives, outlives_its_cancel]).await;
    let handle = parent_of_one_that_outlives().enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
    let child = child_of(&db, handle.id()).await;
    until(&db, child, |info| info.state == RunState::Running).await;
    handle.cancel("for now").await.unwrap();
    let loud = handle.revive(RunState::Cancelled).await.unwrap_err();
    assert!(matches!(loud, ClientError::DescendantsRunning { below, .. } if below == child), "{loud}");
    OUTLIVES.add_permits(2);
    until(&db, child, |info| info.state.is_terminal()).await;
    let revived = handle.revive(RunState::Cancelled).await.unwrap();
    assert!(revived.created());
    soon(revived.result()).await.unwrap();
    worker.stop().await;
}

static LATE: Semaphore = Semaphore::const_new(0);

#[job]
async fn late_child() -> Result<u64> {
    LATE.acquire().await?.forget();
    Ok(7)
}

#[workflow]
async fn waits_for_a_late_child(wf: &Wf) -> Result<u64> {
    let child = wf.start(late_child()).await?;
    wf.step("between", || async { Ok::<_, Error>(()) }).await?;
    Ok(child.result().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn fork_waiting_for_child_of_origin_resumes_when_child_completes() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![waits_for_a_late_child, late_child]).await;
    let handle = waits_for_a_late_child().enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
    let fork = handle.fork("between").await.unwrap();
    until(&db, fork.id(), |info| info.state == RunState::Waiting).await;
    LATE.add_permits(1);
    assert_eq!(soon(fork.result()).await.unwrap(), 7);
    assert_eq!(soon(handle.result()).await.unwrap(), 7);
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run where job = 'late_child'").await, 1);
    worker.stop().await;
}

#[workflow]
async fn waits_for_a_sleeper(wf: &Wf) -> Result<u64> {
    wf.step("first", || async { Ok::<_, Error>(()) }).await?;
    Ok(wf.start(child_that_sleeps()).await?.result().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn revive_of_cancelled_run_revives_its_cancelled_child() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![waits_for_a_sleeper, child_that_sleeps]).await;
    let handle = waits_for_a_sleeper().enqueue(&db).await.unwrap();
    let child = child_of(&db, handle.id()).await;
    until(&db, child, |info| info.cause.as_deref() == Some("slept")).await;
    handle.cancel("for now").await.unwrap();
    for ended in [handle.id(), child] {
        until(&db, ended, |info| info.state == RunState::Cancelled).await;
    }
    let revived = handle.revive(RunState::Cancelled).await.unwrap();
    let again: Uuid = child_of(&db, revived.id()).await;
    let info = until(&db, again, |info| info.cause.as_deref() == Some("slept")).await;
    assert_eq!((info.origin_id, info.parent_id), (Some(child), Some(revived.id())));
    revived.cancel("over").await.unwrap();
    until(&db, again, |info| info.state == RunState::Cancelled).await;
    worker.stop().await;
}

#[workflow]
async fn takes_a_signal(wf: &Wf) -> Result<(u32, u32)> {
    wf.step("before", || async { Ok::<_, Error>(()) }).await?;
    let first = wf.signal::<u32>("number").await?;
    Ok((first, wf.signal::<u32>("number").await?))
}

#[tokio::test(flavor = "multi_thread")]
async fn fork_receives_signals_not_consumed_by_its_recorded_steps() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![takes_a_signal]).await;
    let handle = takes_a_signal().enqueue(&db).await.unwrap();
    for number in [1, 2] {
        handle.signal("number", &number).await.unwrap();
    }
    assert_eq!(soon(handle.result()).await.unwrap(), (1, 2));
    for step in handle.steps().await.unwrap() {
        let fork = handle.fork(&step.key).await.unwrap();
        assert_eq!(soon(fork.result()).await.unwrap(), (1, 2), "from `{}`", step.key);
    }
    let again = handle.rerun().await.unwrap();
    again.signal("number", &3).await.unwrap();
    again.signal("number", &4).await.unwrap();
    assert_eq!(soon(again.result()).await.unwrap(), (3, 4));
    worker.stop().await;
}

#[workflow]
async fn has_branches(wf: &Wf) -> Result<u32> {
    let (left, right) = (wf.branch("left"), wf.branch("right"));
    let one = async {
        left.step("one", || async { Ok::<_, Error>(()) }).await?;
        left.step("two", || async { Ok::<_, Error>(()) }).await
    };
    let other = right.step("other", || async { Ok::<_, Error>(BRANCHED.fetch_add(1, Ordering::SeqCst)) });
    let (one, other) = tokio::join!(one, other);
    one?;
    Ok(other?)
}

static BRANCHED: AtomicU32 = AtomicU32::new(0);

#[tokio::test(flavor = "multi_thread")]
async fn fork_in_one_branch_preserves_steps_of_independent_branch() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![has_branches]).await;
    let handle = has_branches().enqueue(&db).await.unwrap();
    soon(handle.result()).await.unwrap();
    for step in handle.steps().await.unwrap().iter().filter(|step| step.key.starts_with("left/")) {
        let fork = handle.fork(&step.key).await.unwrap();
        assert_eq!(soon(fork.result()).await.unwrap(), 0, "from `{}`", step.key);
    }
    worker.stop().await;
}

#[workflow]
async fn asks_on_its_way(wf: &Wf) -> Result<u64> {
    wf.run(doubles(1)).await?;
    if wf.patched("mail") {
        wf.run(doubles(2).key("mail")).await?;
    }
    // A value requested in one branch is used in another.
    let drawn = wf.branch("papers").random() >> 1;
    Ok(wf.run(doubles(drawn).key("drawn")).await? - drawn - drawn)
}

#[tokio::test(flavor = "multi_thread")]
async fn run_can_be_forked_from_patch_or_random_value() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![asks_on_its_way, doubles]).await;
    let handle = asks_on_its_way().enqueue(&db).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 0);
    let keys: Vec<String> = handle.steps().await.unwrap().into_iter().map(|step| step.key).collect();
    assert_eq!(keys.len(), 5, "{keys:?}");
    for key in keys {
        let fork = handle.fork(&key).await.unwrap();
        assert_eq!(soon(fork.result()).await.unwrap(), 0, "from `{key}`");
        let steps = fork.steps().await.unwrap();
        assert_eq!(steps.len(), 5, "from `{key}`: {steps:?}");
    }
    worker.stop().await;
}

static PASSED_ON: AtomicU32 = AtomicU32::new(0);

#[job]
async fn passes_on(n: u32) -> Result<u32> {
    PASSED_ON.fetch_add(1, Ordering::SeqCst);
    Ok(n)
}

/// The value of the signal is used in another branch.
#[workflow]
async fn passes_a_signal_on(wf: &Wf) -> Result<u32> {
    let papers = wf.branch("papers");
    let n = wf.signal::<u32>("number").await?;
    let (passed, again) = tokio::join!(papers.run(passes_on(n)), wf.run(passes_on(n)));
    Ok(passed? + again?)
}

#[tokio::test(flavor = "multi_thread")]
async fn fork_at_signal_repeats_dependent_steps_in_other_branches() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![passes_a_signal_on, passes_on]).await;
    let handle = passes_a_signal_on().enqueue(&db).await.unwrap();
    handle.signal("number", &7).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 14);
    let fork = handle.fork("signal[number]").await.unwrap();
    assert_eq!(soon(fork.result()).await.unwrap(), 14);
    assert_eq!(PASSED_ON.load(Ordering::SeqCst), 4);
    worker.stop().await;
}
