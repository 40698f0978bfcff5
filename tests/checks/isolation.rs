//! I16: hostile bodies do not stop heartbeats or other runs.

use std::time::{Duration, Instant};

use runledger::{ClientError, enqueue_all};
use runledger_tests::check::{Fleet, jobs};

use super::WORKER;

/// A canary's latency beside hostile bodies: 99 of 100 are below it, whatever the machine does meanwhile.
const TOLERABLE: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
async fn panicking_bodies_beside_a_canary_harm_only_themselves() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let worker = fleet.process(WORKER).await?;
    let mut hostile = Vec::new();
    for _ in 0..20 {
        hostile.push(jobs::check_panicking().enqueue(&fleet.db).await?);
    }
    assert_eq!(slow_canaries(&fleet, 20).await?, 0);
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
async fn a_worker_whose_threads_are_all_blocked_for_longer_than_its_lease_is_not_declared_dead()
-> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let blocked = fleet.process(WORKER).await?;
    let threads = std::thread::available_parallelism()?.get();
    // One batch, so that one claim takes it: twice each thread, which is longer than a lease.
    enqueue_all((0..threads * 2).map(|_| jobs::check_blocking(2500)), &fleet.db).await?;
    let other = fleet.process(WORKER).await?;
    fleet.drained().await?;
    assert_eq!(living(&fleet).await?, [blocked.worker_id, other.worker_id]);
    let claims: i32 =
        sqlx::query_scalar("select max(claims) from audit.claim").fetch_one(fleet.db.pool()).await?;
    assert_eq!(claims, 1, "a run was taken from a living worker");
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    Ok(())
}

async fn slow_canaries(fleet: &Fleet, n_canaries: usize) -> anyhow::Result<usize> {
    let mut n_slow = 0;
    for _ in 0..n_canaries {
        let began = Instant::now();
        jobs::check_canary().enqueue(&fleet.db).await?.result().await?;
        n_slow += usize::from(began.elapsed() > TOLERABLE);
    }
    Ok(n_slow)
}

async fn living(fleet: &Fleet) -> anyhow::Result<Vec<i64>> {
    Ok(fleet.db.workers().await?.iter().map(|worker| worker.worker_id).collect())
}
