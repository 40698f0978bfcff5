//! Cancels of runs with many children.

use std::time::Duration;

use runledger::prelude::*;
use runledger::{Cancelled, RunHandle, RunState};
use runledger_tests::proxy::{Mode, Proxy};
use runledger_tests::rows::{execute, scalar, until, worker};
use runledger_tests::{Fixture, eventually};
use sqlx::Connection;
use uuid::Uuid;

use crate::chores::cancel_halfway;
use crate::crowds::alone;
use crate::plans;

const LONG: Duration = Duration::from_secs(3600);

#[job]
async fn child_of_an_hour() -> Result<()> {
    Ok(())
}

/// Inserts children of a run: `n_ended` terminal ones, and one that starts in an hour.
fn children(parent: Uuid, n_ended: usize) -> String {
    format!(
        "insert into runledger.run (run_id, job, tenant, queue, priority, input, parent_id, depth, start_at)
             select lpad(to_hex(n), 32, '0')::uuid, 'child_of_an_hour', '', 'default', 0, '[]', '{parent}', 1, now()
             from generate_series(1, {n_ended} + 1) n;
         insert into runledger.outcome (run_id, state, output, attempt)
             select run_id, 'completed', 'null', 1 from runledger.run where parent_id = '{parent}' order by run_id limit {n_ended};
         insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
             select run_id, queue, job, priority, now() + interval '1 hour', 'enqueued', 0, 0, 0
             from runledger.run where parent_id = '{parent}' order by run_id desc limit 1"
    )
}

const LAST_CHILD: &str =
    "select run_id from runledger.run where parent_id is not null order by run_id desc limit 1";

const CHILDREN_READ: &str = "select idx_tup_read from pg_stat_user_indexes where indexrelname = 'run_parent'";

#[tokio::test(flavor = "multi_thread")]
async fn cancel_reads_children_in_pages() {
    let Fixture { db, database } = Fixture::new().await;
    let parent = child_of_an_hour().delay(LONG).enqueue(&db).await.unwrap();
    let mut others = database.connect().await.unwrap();
    plans::execute(&mut others, &children(parent.id(), 10_000)).await;
    others.close().await.unwrap();
    let last: Uuid = scalar(&db, LAST_CHILD).await;
    alone(&db).await;
    let before: i64 = scalar(&db, CHILDREN_READ).await;

    let proxy = Proxy::start(database.url()).await.unwrap();
    let through = Db::connect(proxy.url()).await.unwrap();
    let cancelled =
        RunHandle::attach(child_of_an_hour, &through, parent.id()).cancel("no more").await.unwrap();
    assert_eq!(cancelled, Cancelled::Now);
    assert_eq!(db.run(last).info().await.unwrap().state, RunState::Cancelled);
    assert_eq!(proxy.count("-- cancel_below"), 6, "10,001 children in pages of 2,000");
    through.pool().close().await;
    alone(&db).await;
    // The server reports its statistics late: wait until they include the last page.
    let n_read = async || scalar::<i64>(&db, CHILDREN_READ).await - before;
    let n_read = eventually(n_read, |n_read| *n_read > 10_000).await;
    assert!(n_read < 11_000, "{n_read} index entries for 10,001 children");
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_finishes_interrupted_cancel_of_run_with_many_children() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let parent = child_of_an_hour().delay(LONG).enqueue(&db).await.unwrap();
    execute(&db, &children(parent.id(), 10_000)).await;
    let last: Uuid = scalar(&db, LAST_CHILD).await;
    cancel_halfway(&db, &[parent.id()]).await;
    let worker = worker(&db, jobs![child_of_an_hour]).await;
    let info = until(&db, last, |info| info.state == RunState::Cancelled).await;
    assert!(info.error.unwrap().to_string().contains("half done"));
    eventually(async || scalar::<i64>(&db, "select count(*) from runledger.cancel").await, |n| *n == 0).await;
    worker.stop().await;
}

/// A transaction of a few statements then lasts longer than the 200 ms for which a walk waits for a
/// locked run.
const FAR_AWAY: Duration = Duration::from_millis(40);

#[tokio::test(flavor = "multi_thread")]
async fn two_high_latency_clients_cancel_same_children_without_error() {
    let Fixture { db, database } = Fixture::new().await;
    let parent = child_of_an_hour().delay(LONG).enqueue(&db).await.unwrap();
    let children = format!(
        "insert into runledger.run (run_id, job, tenant, queue, priority, input, parent_id, depth, start_at)
             select lpad(to_hex(n), 32, '0')::uuid, 'child_of_an_hour', '', 'default', 0, '[]', '{}', 1, now() from generate_series(1, 10) n;
         insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
             select run_id, queue, job, priority, now() + interval '1 hour', 'enqueued', 0, 0, 0
             from runledger.run where parent_id is not null",
        parent.id()
    );
    execute(&db, &children).await;
    let cancel = async || {
        let proxy = Proxy::start(database.url()).await.unwrap();
        let through = Db::connect(proxy.url()).await.unwrap();
        proxy.set(Mode::Delay(FAR_AWAY));
        RunHandle::attach(child_of_an_hour, &through, parent.id()).cancel("no more").await
    };
    let (first, second) = tokio::join!(cancel(), cancel());
    let ended = Cancelled::AlreadyEnded(RunState::Cancelled);
    let mut both = [first.unwrap(), second.unwrap()];
    both.sort_by_key(|cancelled| *cancelled == ended);
    assert_eq!(both, [Cancelled::Now, ended]);
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.ready").await, 0);
}
