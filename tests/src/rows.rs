//! Queries and workers for tests.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a test that cannot go on panics, in its helpers too"
)]

use std::future::Future;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use runledger::{App, Db, Definition, RunInfo, Timings, Worker};
use sqlx::{AssertSqlSafe, Postgres};
use uuid::Uuid;

use crate::eventually;
use crate::seed::seed;

/// Far more than the slowest machine needs.
pub const LONG: Duration = Duration::from_secs(60);

/// Returns one value.
pub async fn scalar<T>(db: &Db, query: &str) -> T
where
    T: Send + Unpin + for<'r> sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres>,
{
    sqlx::query_scalar(AssertSqlSafe(query.to_owned())).fetch_one(db.pool()).await.unwrap()
}

/// Executes some statements.
pub async fn execute(db: &Db, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(db.pool()).await.unwrap();
}

/// Starts a worker with fast timings that serves only these jobs.
pub async fn worker<const N: usize>(db: &Db, definitions: [&'static Definition; N]) -> Worker {
    App::new(db.clone()).with(definitions).timings(Timings::FAST).start().await.unwrap()
}

/// As [`worker`], but without polls: it finds only runs that it is notified of.
pub async fn worker_without_polls<const N: usize>(db: &Db, definitions: [&'static Definition; N]) -> Worker {
    let timings = runledger::__private::without_polls(Timings::FAST);
    App::new(db.clone()).with(definitions).timings(timings).start().await.unwrap()
}

/// Timings with which no worker counts as dead during a test. The safety sweeps run once at the
/// start and again ten minutes later.
pub fn nets_far_apart() -> Timings {
    Timings::new(Duration::from_millis(500), Duration::from_secs(60), Duration::from_secs(600))
}

/// Waits until the run is as wanted.
pub async fn until(db: &Db, run_id: Uuid, wanted: impl Fn(&RunInfo) -> bool) -> RunInfo {
    eventually(async || db.run(run_id).info().await.unwrap(), wanted).await
}

/// Simulates that the run's worker lost the run: another attempt may start, and the old one is
/// fenced. Returns false if no worker owns the run.
pub async fn take_away(db: &Db, run_id: Uuid) -> bool {
    let taken = sqlx::query(
        "with lost as (delete from runledger.lease where run_id = $1 returning run_id, attempt, crashes, claims)
         insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
         select run_id, run.queue, run.job, run.priority, statement_timestamp(), 'crashed', lost.attempt - 1, lost.crashes, lost.claims
         from lost join runledger.run using (run_id)",
    )
    .bind(run_id)
    .execute(db.pool())
    .await
    .unwrap();
    taken.rows_affected() == 1
}

/// The maximum number of times that a run is taken from its worker.
const N_LOSSES: i32 = 8;

/// Simulates that workers lost some of their runs, chosen at random.
pub async fn take_some_away(db: &Db) -> u64 {
    let taken = sqlx::query(
        "with victim as (select run_id from runledger.lease where claims <= $1 order by random() limit 16 for update skip locked),
         lost as (delete from runledger.lease using victim where lease.run_id = victim.run_id
                  returning lease.run_id, lease.attempt, lease.crashes, lease.claims)
         insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
         select run_id, run.queue, run.job, run.priority, statement_timestamp(), 'crashed', lost.attempt - 1, lost.crashes, lost.claims
         from lost join runledger.run using (run_id)",
    );
    taken.bind(N_LOSSES).execute(db.pool()).await.unwrap().rows_affected()
}

/// Waits for a future that must end soon.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("should have ended long ago")
}

/// Returns a random number below `limit`, to vary delays. All tests of a process draw from one
/// generator, which starts at [`seed`].
pub fn random(limit: u64) -> u64 {
    static NUMBERS: LazyLock<Mutex<fastrand::Rng>> =
        LazyLock::new(|| Mutex::new(fastrand::Rng::with_seed(seed())));
    NUMBERS.lock().unwrap().u64(..limit)
}
