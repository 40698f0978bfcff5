//! A claimer's scans past dead rows, under a snapshot that keeps those rows.

use std::time::{Duration, Instant};

use runledger::prelude::*;
use runledger_tests::proxy::{Mode, Proxy};
use runledger_tests::rows::{execute, scalar};
use runledger_tests::{Fixture, eventually};
use sqlx::PgConnection;

#[job]
async fn looked_for(n: u64) -> Result<u64> {
    Ok(n)
}

/// So many that all other reads of the index are negligible.
const N_DEAD: i64 = 20_000;

/// The minimum delay of each message of the worker and of each reply. A scan then takes longer than
/// a claim waits for it, on any machine.
const SLOW: Duration = Duration::from_millis(30);

/// Leaves dead entries in the lane of a job. Returns an open snapshot that still sees them.
async fn bury(fixture: &Fixture, job: &str) -> PgConnection {
    execute(&fixture.db, "alter table runledger.ready set (autovacuum_enabled = off)").await;
    let dead = format!(
        "insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
         select gen_random_uuid(), 'default', '{job}', 0, now() - interval '1 day', 'enqueued', 0, 0, 0 from generate_series(1, {N_DEAD})"
    );
    execute(&fixture.db, &dead).await;
    let mut pin = fixture.database.connect().await.unwrap();
    sqlx::raw_sql("begin isolation level repeatable read; select 1").execute(&mut pin).await.unwrap();
    execute(&fixture.db, "delete from runledger.ready").await;
    pin
}

#[tokio::test(flavor = "multi_thread")]
async fn only_scans_read_dead_rows_and_slow_scans_run_separately() {
    let fixture = Fixture::new().await;
    let db = &fixture.db;
    let pin = bury(&fixture, "looked_for").await;
    let proxy = Proxy::start(fixture.database.url()).await.unwrap();
    let through = Db::connect(proxy.url()).await.unwrap();
    proxy.set(Mode::Delay(SLOW));
    let worker = App::new(through).with(jobs![looked_for]).start().await.unwrap();
    let n_ended = async || scalar::<i64>(db, "select count(*) from runledger.outcome").await;
    for n in 1..=20_i64 {
        looked_for(n.unsigned_abs()).enqueue(db).await.unwrap();
        eventually(n_ended, |n_ended| *n_ended == n).await;
    }
    // Only the session for background scans sets this.
    eventually(async || proxy.count("set statement_timeout"), |n_beside| *n_beside > 0).await;
    // No claim finds this run: it is due before all cursors. Only a scan does.
    looked_for(0).start_at(std::time::SystemTime::UNIX_EPOCH).enqueue(db).await.unwrap();
    eventually(n_ended, |n_ended| *n_ended == 21).await;
    let [n_looks, n_claims] = ["-- lanes", "-- claim"].map(|verb| proxy.count(verb));
    worker.stop().await;
    drop(pin);
    let met =
        format!("select idx_tup_read / {N_DEAD} from pg_stat_user_indexes where indexrelname = 'ready_lane'");
    let times = scalar::<i64>(db, &met).await;
    assert!(n_claims > 20, "{n_claims} claims");
    // The claim of this last run also passes the dead rows.
    let n_most = i64::try_from(n_looks).unwrap() + 1;
    assert!(times <= n_most, "{times} times past the dead in {n_looks} looks and {n_claims} claims");
}

/// With scans this slow, the next scan starts at least this much later, despite notifications.
const APART: Duration = Duration::from_millis(400);

#[tokio::test(flavor = "multi_thread")]
async fn worker_falling_asleep_respects_pause_between_slow_scans() {
    let fixture = Fixture::new().await;
    let db = &fixture.db;
    let proxy = Proxy::start(fixture.database.url()).await.unwrap();
    let through = Db::connect(proxy.url()).await.unwrap();
    proxy.set(Mode::Delay(SLOW));
    let worker = App::new(through).with(jobs![looked_for]).start().await.unwrap();
    let asleep = async || scalar::<i64>(db, "select count(*) from runledger.worker where sleeping").await;
    eventually(asleep, |n_asleep| *n_asleep == 1).await;
    // The first pauses of a sleeping worker are short.
    let [n_looks, n_claims] = ["-- lanes", "-- claim"].map(|verb| move |proxy: &Proxy| proxy.count(verb));
    let (began, n_before) = (Instant::now(), n_looks(&proxy));
    let n_then = n_before + n_claims(&proxy);
    eventually(async || n_looks(&proxy) + n_claims(&proxy), |n_now| *n_now >= n_then + 4).await;
    let n_most = began.elapsed().as_millis() / APART.as_millis() + 1;
    let n_looks = n_looks(&proxy) - n_before;
    worker.stop().await;
    assert!(n_looks as u128 <= n_most, "{n_looks} looks, of at most {n_most}");
}
