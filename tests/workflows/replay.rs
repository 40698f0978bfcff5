//! Behaviour 16: a recorded step does not execute again, and its output reads the same.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use runledger::RunState;
use runledger::prelude::*;
use runledger_tests::Fixture;
use runledger_tests::rows::{scalar, soon, take_away, until, worker};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

/// A type that loses a field when it is recorded.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Lossy {
    kept: u32,
    #[serde(skip)]
    lost: u32,
    #[serde(default = "nought", skip_serializing)]
    defaulted: u32,
}

fn nought() -> u32 {
    0
}

static SEEN: Mutex<Vec<(u32, u32, u32)>> = Mutex::new(Vec::new());

fn see(lossy: &Lossy) {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner).push((lossy.kept, lossy.lost, lossy.defaulted));
}

#[job]
async fn lossy_job() -> Result<Lossy> {
    Ok(Lossy { kept: 1, lost: 2, defaulted: 3 })
}

#[workflow]
async fn reads_lossy(wf: &Wf) -> Result<u32> {
    let of_job = wf.run(lossy_job()).await?;
    let inline =
        wf.step("inline", || async { Ok::<_, Error>(Lossy { kept: 4, lost: 5, defaulted: 6 }) }).await?;
    see(&of_job);
    see(&inline);
    wf.sleep(Duration::from_secs(2)).await?;
    Ok(of_job.lost + inline.lost)
}

#[tokio::test(flavor = "multi_thread")]
async fn first_execution_sees_same_output_as_replay() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![reads_lossy, lossy_job]).await;
    let handle = reads_lossy().enqueue(&db).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 0);
    let seen = SEEN.lock().unwrap().clone();
    assert_eq!(seen, [(1, 0, 0), (4, 0, 0), (1, 0, 0), (4, 0, 0)], "once before the sleep and once after it");
    worker.stop().await;
}

static BODIES: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
static REPLAY_GATE: Semaphore = Semaphore::const_new(0);

fn ran(body: usize) -> usize {
    BODIES[body].fetch_add(1, Ordering::Relaxed) + 1
}

#[job(max_attempts = 1)]
async fn fails_for_good() -> Result<u64> {
    ran(1);
    Err(std::io::Error::other("the disk is full"))?
}

#[workflow]
async fn interrupted(wf: &Wf) -> Result<String> {
    let number = wf.step("number", || async { Ok::<_, Error>(ran(0)) }).await?;
    let failure = wf.run(fails_for_good()).await.err().map(|error| error.failure().to_string());
    let last = wf
        .step("gated", || async {
            REPLAY_GATE.acquire().await?.forget();
            Ok::<_, Error>(1)
        })
        .await?;
    Ok(format!("{number} {} {last}", failure.unwrap_or_default()))
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_success_or_failure_never_executes_again_in_later_attempts() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![interrupted, fails_for_good]).await;
    let handle = interrupted().enqueue(&db).await.unwrap();
    for claim in 1..=4 {
        let recorded = format!(
            "select count(*) from runledger.step join runledger.lease using (run_id) where lease.claims = {claim}"
        );
        runledger_tests::eventually(async || scalar::<i64>(&db, &recorded).await, |n_steps| *n_steps == 2)
            .await;
        if claim < 4 {
            assert!(take_away(&db, handle.id()).await);
        }
    }
    REPLAY_GATE.add_permits(8);
    assert_eq!(soon(handle.result()).await.unwrap(), "1 the disk is full 1");
    let bodies = BODIES.each_ref().map(|body| body.load(Ordering::Relaxed));
    assert_eq!(bodies, [1, 1], "recorded under the first claim, they never ran again");
    assert_eq!(handle.info().await.unwrap().attempt, 1);
    worker.stop().await;
}

static ZOMBIES: Semaphore = Semaphore::const_new(0);
static N_STARTED: AtomicUsize = AtomicUsize::new(0);

#[workflow]
async fn overtaken(wf: &Wf) -> Result<usize> {
    let own = wf
        .step("own", || async {
            let own = N_STARTED.fetch_add(1, Ordering::Relaxed) + 1;
            ZOMBIES.acquire().await?.forget();
            Ok::<_, Error>(own)
        })
        .await?;
    wf.step("after", || async { Ok::<_, Error>(own) }).await?;
    Ok(own)
}

#[tokio::test(flavor = "multi_thread")]
async fn attempt_without_lease_records_no_step_and_no_outcome() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![overtaken]).await;
    let handle = overtaken().enqueue(&db).await.unwrap();
    for attempt in 1..=2 {
        runledger_tests::eventually(
            async || N_STARTED.load(Ordering::Relaxed),
            |started| *started == attempt,
        )
        .await;
        if attempt == 1 {
            until(&db, handle.id(), |info| info.state == RunState::Running).await;
            assert!(take_away(&db, handle.id()).await);
        }
    }
    ZOMBIES.add_permits(2);
    assert_eq!(soon(handle.result()).await.unwrap(), 2, "the output of the attempt that owns the run");
    let claims: i32 = scalar(&db, "select min(claims) from runledger.step").await;
    assert_eq!(claims, 2, "the first attempt recorded nothing");
    worker.stop().await;
}

#[workflow]
async fn fans_out(wf: &Wf, width: u32) -> Result<u32> {
    let steps = (0..width).map(|n| wf.step("branch", move || async move { Ok::<_, Error>(n) }));
    let branches = futures::future::try_join_all(steps).await?;
    wf.sleep(Duration::from_millis(400)).await?;
    wf.step("sum", || async { Ok::<u32, Error>(branches.iter().sum()) }).await.map_err(Into::into)
}

#[tokio::test(flavor = "multi_thread")]
async fn thousand_step_fan_out_is_recorded_and_replayed() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![fans_out]).await;
    let handle = fans_out(1000).enqueue(&db).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 499_500);
    assert_eq!(handle.steps().await.unwrap().len(), 1002);
    // Two numbers per delivery: the step, and the number of claims before it.
    let order: Option<i64> =
        scalar(&db, "select (sum(cardinality(seen)) / 2)::bigint from runledger.step").await;
    assert!(order.unwrap_or(0) <= 1000, "the order of deliveries is stored once: {order:?}");
    worker.stop().await;
}
