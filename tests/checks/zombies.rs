//! I2, I3, I10: a worker is paused for longer than its lease, and resumes after another worker has
//! taken its runs. `tests/it/fence.rs` covers every single write of an old attempt; these tests
//! cover whole processes.

use runledger::{Call, Job};
use runledger_tests::check::fleet::{Process, completes};
use runledger_tests::check::{Fleet, Place, jobs};
use runledger_tests::eventually;
use uuid::Uuid;

use super::WORKER;

/// The claims of a zombie's run once the other worker owns it.
const TAKEN_OVER: i64 = 2;

#[tokio::test(flavor = "multi_thread")]
async fn stale_worker_cannot_record_step() -> anyhow::Result<()> {
    // In the second body of the run, so that the first step is recorded.
    sleep_in_body(2, jobs::check_steps).await
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_worker_cannot_complete_reclaimed_run() -> anyhow::Result<()> {
    sleep_in_body(1, jobs::check_gated).await
}

#[tokio::test(flavor = "multi_thread")]
async fn transactional_body_of_stale_worker_commits_nothing() -> anyhow::Result<()> {
    sleep_in_body(1, jobs::check_post).await
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_worker_starts_no_body_before_noticing_lost_lease() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let zombie = fleet.process(WORKER).await?;
    let run = jobs::check_pausing(fleet.place.clone()).enqueue(&fleet.db).await?;
    recorded(&fleet, run.id(), 1).await;
    zombie.pause()?;
    let _heir = fleet.process(WORKER).await?;
    claimed(&fleet, run.id(), TAKEN_OVER).await;
    wake(&fleet, &zombie).await?;
    fleet.drained().await?;
    assert_eq!(fleet.verdict(&[zombie.pid]).await?, Vec::<String>::new());
    Ok(())
}

/// Pauses a worker in body number `n_bodies` of its run until another worker is in that body, then
/// resumes it. The run must return the other worker's output.
async fn sleep_in_body<J: Job<Output = Uuid>>(
    n_bodies: usize,
    call: impl Fn(Place) -> Call<J>,
) -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let zombie = fleet.process(WORKER).await?;
    let run = call(fleet.place.clone()).enqueue(&fleet.db).await?;
    fleet.started(run.id(), n_bodies).await?;
    zombie.pause()?;
    let heir = fleet.process(WORKER).await?;
    let taken = fleet.started(run.id(), n_bodies + 1).await?;
    assert_eq!(taken.pid, heir.pid);
    wake(&fleet, &zombie).await?;
    assert_eq!(completes(&run).await, taken.token, "the run gave what the stale attempt had");
    fleet.drained().await?;
    assert_eq!(fleet.verdict(&[zombie.pid]).await?, Vec::<String>::new());
    Ok(())
}

/// Resumes a paused worker. Opens the gate for the others only once that worker knows that it was
/// declared dead.
async fn wake(fleet: &Fleet, zombie: &Process) -> anyhow::Result<()> {
    fleet.place.open(&zombie.pid.to_string())?;
    zombie.resume()?;
    registered_anew(fleet, zombie.worker_id).await;
    Ok(fleet.place.open("all")?)
}

/// Waits until a process that was declared dead has registered under another id.
async fn registered_anew(fleet: &Fleet, worker_id: i64) {
    let sessions = || async {
        sqlx::query_scalar::<_, i64>(
            "select count(*)
            from runledger.worker as living
            join runledger.worker as dead using (session_name)
            where dead.worker_id = $1 and dead.state = 'dead' and living.state = 'active'",
        )
        .bind(worker_id)
        .fetch_one(fleet.db.pool())
        .await
        .unwrap_or_default()
    };
    eventually(sessions, |living| *living == 1).await;
}

async fn recorded(fleet: &Fleet, run_id: Uuid, n_steps: i64) {
    let steps = || async {
        sqlx::query_scalar::<_, i64>("select count(*) from runledger.step where run_id = $1")
            .bind(run_id)
            .fetch_one(fleet.db.pool())
            .await
            .unwrap_or_default()
    };
    eventually(steps, |steps| *steps >= n_steps).await;
}

async fn claimed(fleet: &Fleet, run_id: Uuid, n_claims: i64) {
    let claims = || async {
        sqlx::query_scalar::<_, i64>("select count(*) from audit.claim where run_id = $1")
            .bind(run_id)
            .fetch_one(fleet.db.pool())
            .await
            .unwrap_or_default()
    };
    eventually(claims, |claims| *claims >= n_claims).await;
}
