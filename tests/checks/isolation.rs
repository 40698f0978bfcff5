//! I16: hostile bodies do not stop heartbeats or other runs.

use runledger::{ClientError, enqueue_all};
use runledger_tests::check::fleet::completes;
use runledger_tests::check::{Fleet, jobs};

use super::WORKER;

#[tokio::test(flavor = "multi_thread")]
async fn panicking_body_does_not_affect_other_runs_or_worker() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let worker = fleet.process(WORKER).await?;
    let mut hostile = Vec::new();
    for _ in 0..20 {
        hostile.push(jobs::check_panicking().enqueue(&fleet.db).await?);
    }
    for _ in 0..20 {
        completes(&jobs::check_canary().enqueue(&fleet.db).await?).await;
    }
    assert_eq!(n_taken_from_workers(&fleet).await?, 0, "a panic of one body interrupted another run");
    for run in hostile {
        let result = run.result().await;
        assert!(
            matches!(&result, Err(ClientError::RunFailed { failure, .. }) if failure.message == "panicked: on purpose"),
            "{result:?}"
        );
    }
    assert_eq!(living(&fleet).await?, [worker.worker_id]);
    fleet.drained().await?;
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_with_blocked_threads_beyond_lease_is_not_declared_dead() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let blocked = fleet.process(WORKER).await?;
    let threads = std::thread::available_parallelism()?.get();
    // One batch, so that one claim takes all of it and every thread blocks longer than the lease of
    // 4 s. With two batches, a heartbeat could run between the claims.
    enqueue_all((0..threads).map(|_| jobs::check_blocking(6_000)), &fleet.db).await?;
    let other = fleet.process(WORKER).await?;
    fleet.drained().await?;
    assert_eq!(living(&fleet).await?, [blocked.worker_id, other.worker_id]);
    assert_eq!(n_taken_from_workers(&fleet).await?, 0, "a run was taken from a living worker");
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    Ok(())
}

async fn n_taken_from_workers(fleet: &Fleet) -> anyhow::Result<i64> {
    let taken = "select count(*) from audit.recovery";
    Ok(sqlx::query_scalar(taken).fetch_one(fleet.db.pool()).await?)
}

async fn living(fleet: &Fleet) -> anyhow::Result<Vec<i64>> {
    Ok(fleet.db.workers().await?.iter().map(|worker| worker.worker_id).collect())
}
