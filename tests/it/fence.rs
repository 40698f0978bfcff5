//! Behaviour 11: once its lease is over and another attempt has started, an attempt can change
//! nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use runledger::prelude::*;
use runledger::{Job, Timings, Worker};
use runledger_tests::{Fixture, PATIENCE, eventually};
use tokio::sync::Semaphore;
use uuid::Uuid;

/// Blocks bodies in the middle, and counts how many were dropped or have returned.
#[derive(Clone, Debug)]
struct Gate {
    entered: Arc<Semaphore>,
    door: Arc<Semaphore>,
    gone: Arc<AtomicUsize>,
    returned: Arc<AtomicUsize>,
}

/// A body inside the gate.
struct Inside(Arc<AtomicUsize>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Gate {
    fn new() -> Self {
        let closed = || Arc::new(Semaphore::new(0));
        Self { entered: closed(), door: closed(), gone: Arc::default(), returned: Arc::default() }
    }

    /// For the body: reports that it has entered, and waits until the test opens the door.
    async fn stop(&self) -> Inside {
        let inside = Inside(Arc::clone(&self.gone));
        self.entered.add_permits(1);
        self.door.acquire().await.unwrap().forget();
        inside
    }

    /// For the test: waits until a body is inside.
    async fn reached(&self) {
        let entered = tokio::time::timeout(PATIENCE, self.entered.acquire()).await;
        entered.unwrap().unwrap().forget();
    }
}

#[job]
async fn fence_completes(#[inject] gate: &Gate) -> Result<u32> {
    let _inside = gate.stop().await;
    Ok(1)
}

#[job]
async fn fence_fails(#[inject] gate: &Gate) -> Result<u32> {
    let _inside = gate.stop().await;
    Err("the old attempt failed")?
}

#[job]
async fn fence_fails_for_good(#[inject] gate: &Gate) -> Result<u32> {
    let _inside = gate.stop().await;
    Err(Error::terminal("the old attempt failed"))
}

#[workflow]
async fn fence_records_a_step(wf: &Wf, #[inject] gate: &Gate) -> Result<u32> {
    let one = wf.step("one", || async {
        drop(gate.stop().await);
        Ok::<u32, Error>(1)
    });
    let one = one.await?;
    gate.returned.fetch_add(1, Ordering::SeqCst);
    Ok(one)
}

#[workflow]
async fn fence_fails_a_step(wf: &Wf, #[inject] gate: &Gate) -> Result<u32> {
    let one = wf.step("one", || async {
        drop(gate.stop().await);
        Err::<u32, Error>("not yet".into())
    });
    let one = one.backoff(Duration::from_millis(1), Duration::from_millis(1)).await?;
    gate.returned.fetch_add(1, Ordering::SeqCst);
    Ok(one)
}

#[job]
async fn fence_child() -> Result<u32> {
    Ok(2)
}

#[workflow]
async fn fence_starts_a_child(wf: &Wf, #[inject] gate: &Gate) -> Result<u32> {
    let _inside = gate.stop().await;
    wf.start(fence_child()).await?;
    gate.returned.fetch_add(1, Ordering::SeqCst);
    Ok(1)
}

#[workflow]
async fn fence_waits_for_a_child(wf: &Wf, #[inject] gate: &Gate) -> Result<u32> {
    let child = wf.start(fence_child().queue("unserved")).await?;
    let _inside = gate.stop().await;
    let two = child.result().await?;
    gate.returned.fetch_add(1, Ordering::SeqCst);
    Ok(two)
}

#[workflow]
async fn fence_sleeps(wf: &Wf, #[inject] gate: &Gate) -> Result<u32> {
    let _inside = gate.stop().await;
    wf.sleep(Duration::from_secs(3600)).await?;
    gate.returned.fetch_add(1, Ordering::SeqCst);
    Ok(1)
}

#[job]
async fn fence_writes(#[inject] tx: &mut Tx, #[inject] gate: &Gate) -> Result<u32> {
    sqlx::query("insert into ledger values (1)").execute(&mut **tx).await?;
    fence_child().enqueue(&mut *tx).await?;
    let _inside = gate.stop().await;
    Ok(1)
}

#[workflow]
async fn fence_writes_in_a_step(wf: &Wf, #[inject] gate: &Gate) -> Result<u32> {
    let one = wf.run(fence_writes()).await?;
    gate.returned.fetch_add(1, Ordering::SeqCst);
    Ok(one)
}

#[workflow]
async fn fence_never_ends(wf: &Wf, #[inject] gate: &Gate) -> Result<Uuid> {
    let _inside = gate.stop().await;
    std::future::pending::<()>().await;
    Ok(wf.run_id())
}

#[job]
async fn fence_counts_entries(#[inject] gate: &Gate) -> Result<usize> {
    // The first body stays until it is dropped. The second returns its number.
    let entry = gate.returned.fetch_add(1, Ordering::SeqCst) + 1;
    if entry == 1 {
        let _inside = gate.stop().await;
    }
    Ok(entry)
}

/// The attempt that owns the run when the old one resumes.
#[derive(Clone, Copy, Debug)]
enum Other {
    /// A claim with the next number.
    Next,
    /// A claim with the same number, on a server that lost the old claim in a failover.
    SameNumber,
}

/// A worker with one run whose body waits at the gate.
struct Scene {
    fixture: Fixture,
    gate: Gate,
    worker: Option<Worker>,
    run_id: Uuid,
}

impl Scene {
    async fn new<J: Job>(call: Call<J>, timings: Timings) -> Self {
        let fixture = Fixture::new().await;
        let (db, gate) = (&fixture.db, Gate::new());
        sqlx::query("create table ledger (n integer)").execute(db.pool()).await.unwrap();
        let app = App::new(db.clone()).with([J::DEFINITION]).provide(gate.clone()).timings(timings);
        let run_id = call.enqueue(db).await.unwrap().id();
        let worker = Some(app.start().await.unwrap());
        gate.reached().await;
        Self { fixture, gate, worker, run_id }
    }

    fn db(&self) -> &Db {
        &self.fixture.db
    }

    /// Simulates a claim by another worker: another worker, another token and a claim number.
    async fn give_the_run_to(&self, other: Other) {
        let moved = "with other as (
                insert into runledger.worker (name, version, session_name, jobs, queues, heartbeat_at)
                values ('other', '1', 'other', '{}', '{}', 'infinity')
                returning worker_id
            )
            update runledger.lease
            set token = gen_random_uuid(), worker_id = other.worker_id, claims = claims + $2, claimed_at = now()
            from other
            where run_id = $1";
        let n_later = match other {
            Other::Next => 1,
            Other::SameNumber => 0,
        };
        let moved = sqlx::query(moved).bind(self.run_id).bind(n_later);
        let moved = moved.execute(self.db().pool()).await.unwrap();
        assert_eq!(moved.rows_affected(), 1);
    }

    /// Returns all rows that an attempt could have written.
    async fn rows(&self) -> String {
        let rows = "select json_build_object(
                'run', (select json_agg(t order by run_id) from runledger.run t),
                'ready', (select json_agg(t order by run_id) from runledger.ready t),
                'lease', (select json_agg(t order by run_id) from runledger.lease t),
                'waiting', (select json_agg(t order by run_id) from runledger.waiting t),
                'outcome', (select json_agg(t order by run_id) from runledger.outcome t),
                'step', (select json_agg(t order by run_id, key) from runledger.step t),
                'attempt', (select json_agg(t order by run_id) from runledger.attempt t),
                'ledger', (select json_agg(t) from ledger t)
            )::text";
        sqlx::query_scalar(rows).fetch_one(self.db().pool()).await.unwrap()
    }

    /// Resumes the old attempt after another has started, and waits until nothing of it is left.
    async fn expect_refusal(mut self, other: Other) {
        self.give_the_run_to(other).await;
        let before = self.rows().await;
        self.gate.door.add_permits(1);
        eventually(async || self.gate.gone.load(Ordering::SeqCst), |gone| *gone == 1).await;
        // A stop waits for all pending writes, so the old attempt has written by now if it could.
        // The stop's own limit for hanging work is longer than this one.
        let worker = self.worker.take().unwrap();
        tokio::time::timeout(PATIENCE / 2, worker.stop()).await.expect("the old attempt has not ended");
        assert_eq!(self.rows().await, before);
        assert_eq!(self.gate.returned.load(Ordering::SeqCst), 0, "the future went on after the refusal");
    }
}

async fn expect_refusal<J: Job>(call: impl Fn() -> Call<J>) {
    for other in [Other::Next, Other::SameNumber] {
        Scene::new(call(), Timings::DEFAULT).await.expect_refusal(other).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_attempt_cannot_complete_run() {
    expect_refusal(fence_completes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_attempt_cannot_fail_run() {
    expect_refusal(fence_fails).await;
    expect_refusal(fence_fails_for_good).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_attempt_cannot_record_step_and_is_dropped() {
    expect_refusal(fence_records_a_step).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_attempt_cannot_record_step_failure_and_is_dropped() {
    expect_refusal(fence_fails_a_step).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_attempt_cannot_start_child_and_is_dropped() {
    expect_refusal(fence_starts_a_child).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_attempt_cannot_suspend_and_is_dropped() {
    expect_refusal(fence_waits_for_a_child).await;
    expect_refusal(fence_sleeps).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_attempt_cannot_commit_transactional_step_or_its_enqueues() {
    expect_refusal(fence_writes_in_a_step).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_attempt_cannot_commit_transactional_job_or_its_enqueues() {
    expect_refusal(fence_writes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_attempt_is_dropped_even_if_it_writes_nothing() {
    let scene = Scene::new(fence_never_ends(), Timings::FAST).await;
    scene.gate.door.add_permits(1);
    scene.give_the_run_to(Other::Next).await;
    let before = scene.rows().await;
    eventually(async || scene.gate.gone.load(Ordering::SeqCst), |gone| *gone == 1).await;
    assert_eq!(scene.rows().await, before);
    scene.worker.unwrap().stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_declared_dead_drops_attempt_and_new_attempt_completes_run() {
    let scene = Scene::new(fence_counts_entries(), Timings::FAST).await;
    let worker = scene.worker.unwrap();
    let buried = worker.id();
    let bury = "update runledger.worker set state = 'dead', died_at = clock_timestamp(), died_why = 'a test' where worker_id = $1";
    sqlx::query(bury).bind(buried).execute(scene.fixture.db.pool()).await.unwrap();
    let run = RunHandle::attach(fence_counts_entries, &scene.fixture.db, scene.run_id);
    // The first body is never let through. Only dropping it lets the worker start the run again.
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), 2);
    assert_ne!(run.info().await.unwrap().worker_id, Some(buried));
    assert_ne!(worker.id(), buried);
    worker.stop().await;
}
