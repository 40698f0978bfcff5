//! A death between the end of a child and the wake-up of its parent.

use std::time::Duration;

use runledger::prelude::*;
use runledger::testing::Testing;
use uuid::Uuid;

const PAUSE: Duration = Duration::from_millis(5);

async fn becomes_true(db: &Db, query: &'static str, run_id: Uuid) -> Result<()> {
    while !sqlx::query_scalar::<_, bool>(query).bind(run_id).fetch_one(db.pool()).await? {
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// Ends while the row of its parent is locked. So the worker cannot wake the parent in the
/// transaction that stores the outcome.
#[job]
async fn ends_beside_a_lock(parent: Uuid, #[inject] db: &Db, #[inject] context: &Context) -> Result<()> {
    let (db, run_id) = (db.clone(), context.run_id());
    becomes_true(&db, "select exists (select from runledger.waiting where run_id = $1)", parent).await?;
    let mut lock = db.pool().begin().await?;
    sqlx::query("select from runledger.run where run_id = $1 for no key update")
        .bind(parent)
        .execute(&mut *lock)
        .await?;
    tokio::spawn(async move {
        becomes_true(&db, "select exists (select from runledger.outcome where run_id = $1)", run_id).await?;
        lock.rollback().await?;
        Ok::<_, Error>(())
    });
    Ok(())
}

#[workflow]
async fn waits_for_it(wf: &Wf) -> Result<()> {
    let child = wf.start(ends_beside_a_lock(wf.run_id())).await?;
    child.result().await?;
    Ok(())
}

#[tokio::test]
async fn parent_wakes_after_worker_crash_before_wake_up_commit() {
    let test = Testing::new().await.unwrap().with(jobs![waits_for_it, ends_beside_a_lock]);
    let test = test.provide_with(Clone::clone);
    let crashes =
        test.crash_everywhere(waits_for_it()).only("before the commit of `wake_met`").await.unwrap();
    assert!(crashes.n_crashes() > 0, "{crashes}");
}
